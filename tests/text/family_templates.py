# ruff: noqa: E501 - templates have long lines
"""Small chat templates, written for these tests, that do what the templates of well-known families do."""

from __future__ import annotations

QWEN3 = r"""
{%- set ns = namespace(last=messages | length - 1, waiting=true) %}
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{% endif %}
    {%- if tools %}
        {{- '\n<tools>' }}
        {%- for tool in tools %}{{- '\n' ~ tool | tojson }}{% endfor %}
        {{- '\n</tools>' }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.waiting and message.role == 'user' and message.content is string and not message.content.startswith('<tool_response>') %}
        {%- set ns.waiting = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{% set call = call.function %}{% endif %}
            {{- '\n' if content or not loop.first }}
            {{- '<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' }}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

LLAMA3 = r"""
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
        {{- message.content | tojson if message.content is mapping else message.content }}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

GEMMA = r"""
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
    {%- if message.content is string %}{{- message.content | trim }}
    {%- else %}{% for part in message.content %}{% if part.type == 'text' %}{{- part.text | trim }}{% endif %}{% endfor %}
    {%- endif %}
    {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{% endif %}"""

GRANITE = r"""
{%- for message in messages %}
    {%- set ns = namespace(text='') %}
    {%- if message.content is string %}{% set ns.text = message.content %}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'text' %}{% set ns.text = ns.text + ('\n' if ns.text else '') + part.text %}{% endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|start_of_role|>' + message.role + '<|end_of_role|>' + ns.text + '<|end_of_text|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"""

DEEPSEEK = r"""
{%- set ns = namespace(system='') %}
{%- for m in messages %}{% if m['role'] == 'system' %}{% set ns.system = m['content'] %}{% endif %}{% endfor %}
{{- bos_token ~ ns.system }}
{%- for m in messages %}
    {%- if m['role'] == 'user' %}{{- '<|User|>' + m['content'] }}
    {%- elif m['role'] == 'assistant' and 'tool_calls' in m and m['tool_calls'] is not none %}
        {{- '<|Assistant|>' + (m['content'] or '') if m['content'] is defined else '<|Assistant|>' }}
        {%- for call in m['tool_calls'] %}
            {{- '<|call|>' + call['function']['name'] + '\n```json\n' + call['function']['arguments'] + '\n```<|/call|>' }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif m['role'] == 'assistant' and m['content'] is not none %}
        {%- set content = m['content'] %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
        {{- '<|Assistant|>' + content + eos_token }}
    {%- elif m['role'] == 'tool' %}{{- '<|output|>' + m['content'] + '<|/output|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|><think>\n' }}{% endif %}"""

HARMONY = r"""
{{- '<|start|>system<|message|>Current date: ' ~ strftime_now('%Y-%m-%d') ~ '\n\nReasoning: ' }}
{{- (reasoning_effort if reasoning_effort is defined else 'medium') ~ '<|end|>' }}
{%- for message in messages %}
    {%- if message.role in ['system', 'developer'] %}
        {{- '<|start|>developer<|message|># Instructions\n\n' + message.content + '<|end|>' }}
    {%- elif message.role == 'assistant' %}
        {%- if 'thinking' in message and loop.last and not add_generation_prompt %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
        {%- endif %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}"""

GLM = r"""
{{- '[gMASK]<sop>' }}
{%- for m in messages %}
    {%- if m.role == 'observation' %}{{- '<|observation|>\n' + m.content }}
    {%- else %}{{- '<|' + m.role + '|>\n' + m.content }}{% endif %}
{%- endfor %}
{%- if documents %}{% for d in documents %}{{- '<doc>' + d.title + ': ' + d.text + '</doc>' }}{% endfor %}{% endif %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""

FAMILIES = {
    "QWEN3": QWEN3,
    "LLAMA3": LLAMA3,
    "GEMMA": GEMMA,
    "GRANITE": GRANITE,
    "DEEPSEEK": DEEPSEEK,
    "HARMONY": HARMONY,
    "GLM": GLM,
}
