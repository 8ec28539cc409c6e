"""The page: its files as browsers get them, its texts under Node, and itself in a browser without a screen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.helpers.served import models_of, served, until
from tests.server.conftest import ENDLESS

FILES = Path(__file__).parents[2] / "edge_rt" / "server" / "page"
PATHS = ("/", "/page.js", "/conversations.js", "/text.js", "/page.css")
KEY = "a-key-of-some-length"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Answers of noise end where a message says so, and nowhere else.
ENDLESS_ANSWERS = """
const fetched = window.fetch;
window.fetch = (where, options) => {
  if (options?.body) options.body = JSON.stringify({ ...JSON.parse(options.body), logit_bias: BIAS });
  return fetched(where, options);
};
""".replace("BIAS", json.dumps(ENDLESS["logit_bias"]))
SCRIPTS = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "[link](javascript:window.hit=1)",
    "```html\n<svg onload=window.hit=1>\n```",
    "| <b onclick=window.hit=1> | b |\n|---|---|\n| <iframe srcdoc='<script>top.hit=1</script>'> | 2 |",
)


@pytest.mark.parametrize("path", PATHS)
def test_files_may_load_nothing_from_elsewhere_and_are_in_no_frame(client, path):
    response = client.get(path)
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-frame-options"] == "DENY"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_the_browser_has_is_not_sent_again(client, path):
    tag = client.get(path).headers["etag"]
    again = client.get(path, headers={"if-none-match": f'"other", W/{tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_only_names_of_the_server_get_the_page_and_what_it_reads_is_not_stored(client):
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    assert client.get("/v1/edge/status").headers["cache-control"] == "no-store"


def test_the_page_names_no_address_and_reads_no_text_as_html():
    for path in FILES.iterdir():
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path
        addresses = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}  # The name of SVG.
        assert not addresses, path


def test_texts_of_the_page(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node.js on this machine")
    for name in ("conversations", "text"):
        shutil.copy(FILES / f"{name}.js", tmp_path / f"{name}.mjs")
    shutil.copy(Path(__file__).parent / "page_text.mjs", tmp_path)
    run = subprocess.run([node, "page_text.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_chunks_tell_which_characters_are_accepted_drafts(client):
    given = {"messages": [{"role": "user", "content": "Repeat"}], "max_tokens": 40, **ENDLESS}
    whole = client.post("/v1/chat/completions", json=given).json()["choices"][0]["message"]["content"]
    predicted = {"prediction": {"type": "content", "content": whole}, "stream": True}
    options = {"stream_options": {"include_drafts": True}}
    text = client.post("/v1/chat/completions", json={**given, **predicted, **options}).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    steps = [chunk["edge_rt"] for chunk in chunks if "tokens" in chunk.get("edge_rt", {})]
    timings = chunks[-1]["timings"]
    assert sum(step["tokens"] for step in steps) == timings["predicted_n"] == 40
    assert sum(step["accepted"] for step in steps) == timings["draft_n_accepted"] > 0
    assert all(step["accepted"] < step["tokens"] for step in steps)
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == whole
    assert 0 < sum(step["accepted_characters"] for step in steps) < len(whole)
    unasked = client.post("/v1/chat/completions", json={**given, **predicted}).text
    assert '"accepted"' not in unasked


# --- In a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def large(long_package):
    """A server, its address, and the passes of its model."""
    with served(models_of({"small": long_package}, slots=2, ctx=4096)) as (server, client):
        client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        yield str(client.base_url), server.models.loaded["small"].model._batch


@pytest.fixture
def batch(large):
    return large[1]


@pytest.fixture
def new_tab(browser, large):
    """Open the page in tabs of one browser."""
    context = browser.new_context()
    context.add_init_script(ENDLESS_ANSWERS)
    errors = []

    def open_tab():
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if "Content Security" in line.text else None)
        page.goto(large[0])
        page.wait_for_selector("#model option[value=small]", state="attached")
        return page

    yield open_tab
    context.close()
    assert not errors


@pytest.fixture
def page(new_tab):
    return new_tab()


def settings(page, **values):
    """Fill in fields of the settings."""
    page.evaluate("document.getElementById('more').open = true")
    for name, value in values.items():
        page.fill(f"#{name}", str(value))
    page.evaluate("document.getElementById('more').open = false")


def ask(page, text="Hello", **values):
    """Send a message."""
    settings(page, **values)
    page.fill("#text", text)
    page.press("#text", "Enter")


def wait_until(page, state):
    # Not wait_for_function: the page's policy forbids what it does.
    until(lambda: page.text_content("#state").startswith(state))


@contextmanager
def half_answered(page, batch, begin=ask, **values):
    """Ask, and hold the model when the answer has begun."""
    with ExitStack() as held:
        held.enter_context(batch._turns.take())
        settings(page, max_tokens=3500, temperature=1, seed=5)
        begin(page, **values)
        until(lambda: bool(batch.admission.waiting))
        while len(page.locator("article.assistant .body").last.text_content()) <= 20:
            held.close()
            time.sleep(0.002)  # A few passes.
            held.enter_context(batch._turns.take())
        yield


def fill_history(page, messages):
    """Reload with a conversation that the browser has."""
    chat = {"id": "kept", "title": "Kept", "changed": 1, "messages": messages}
    page.evaluate(
        "text => { localStorage.setItem('edge-rt.chat.kept', text); sessionStorage.setItem('edge-rt.open', 'kept'); }",
        json.dumps(chat),
    )
    page.reload()


def test_an_answer_is_streamed_with_figures_and_kept(page):
    ask(page, "Hello there", max_tokens=30, temperature=0)
    wait_until(page, "Done")
    assert page.locator("article").count() == 2
    assert page.locator("article.assistant .body").inner_text()
    assert "tokens/s" in page.inner_text("#figures")
    assert re.search(r"\d+ tokens, [\d.]+ per second, [\d.]+ per step", page.inner_text("article.assistant"))
    until(lambda: "planned" in page.inner_text("#figures"))
    assert page.inner_text("#spoken").strip() or page.text_content("#spoken").strip()
    before = page.locator("article.assistant .body").inner_text()
    page.reload()
    assert page.locator("article.assistant .body").inner_text() == before


def test_stop_keeps_what_has_come_and_retry_answers_again(page, batch):
    with half_answered(page, batch):
        assert page.get_attribute("#log", "aria-busy") == "true"
        page.click("#stop")
        wait_until(page, "Stopped")
    assert "Stopped." in page.inner_text("article.assistant")
    assert page.evaluate("document.activeElement.id") == "text"
    settings(page, max_tokens=10)
    page.click("article.assistant >> text=Retry")
    wait_until(page, "Done")
    assert page.locator("article").count() == 2


def test_a_reload_during_an_answer_keeps_it_as_stopped(page, batch):
    with half_answered(page, batch):
        page.reload()
    assert page.locator("article").count() == 2
    assert len(page.inner_text("article.assistant .body")) > 10
    assert "Stopped." in page.inner_text("article.assistant")


def test_an_edited_message_is_asked_again_without_what_came_after_it(page):
    ask(page, "First", max_tokens=8)
    wait_until(page, "Done")
    page.click("article.user >> text=Edit")
    page.fill("article.user textarea", "Second")
    page.click("text=Send again")
    wait_until(page, "Done")
    assert page.locator("article.user .body").all_inner_texts() == ["Second"]
    assert page.locator("article").count() == 2


def test_an_answer_fits_the_schema(page):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    ask(page, "Is it?", schema=json.dumps(schema), max_tokens=200)
    wait_until(page, "Done")
    assert isinstance(json.loads(page.inner_text("article.assistant pre"))["ok"], bool)
    ask(page, "Again?", schema="{no schema")
    wait_until(page, "The schema")


def test_a_system_prompt_and_settings_go_with_the_request(page):
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "Hello", system="Be short.", temperature=0.5, top_k=7, max_tokens=4)
    body = asked.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be short."}
    assert (body["temperature"], body["top_k"], body["max_tokens"]) == (0.5, 7, 4)
    wait_until(page, "Done")


def test_tabs_show_what_one_of_them_is_told(new_tab, batch):
    one, other = new_tab(), new_tab()
    ask(one, "Hello", max_tokens=5)
    wait_until(one, "Done")
    until(lambda: other.locator("#chats option").count() == 2)
    other.select_option("#chats", label="Hello")
    with half_answered(one, batch, text="More"):
        until(lambda: "Another tab is writing this." in other.inner_text("#log"))
        one.click("#stop")
        until(lambda: "Stopped." in other.inner_text("#log"))
    assert other.locator(".body").all_inner_texts() == one.locator(".body").all_inner_texts()
    assert other.locator(".body").count() == 4
    one.evaluate("document.getElementById('more').open = true")
    one.click("#delete")
    wait_until(other, "The conversation was deleted")
    assert other.locator("article").count() == 0
    other.reload()
    assert other.evaluate("Object.keys(localStorage).filter(key => key.startsWith('edge-rt.chat')).length") == 0


def test_tabs_that_both_go_on_with_a_conversation_lose_nothing(new_tab, batch):
    one, other = new_tab(), new_tab()
    ask(one, "Hello", max_tokens=5)
    wait_until(one, "Done")
    until(lambda: other.locator("#chats option").count() == 2)
    other.select_option("#chats", label="Hello")
    settings(other, max_tokens=5)
    with half_answered(one, batch, text="This"):
        ask(other, "That", max_tokens=5)
        until(lambda: bool(batch.admission.waiting))
        one.click("#stop")
        wait_until(one, "Another tab went on")
    wait_until(other, "Done")
    titles = one.locator("#chats option").all_inner_texts()
    assert sorted(titles) == ["Hello", "Hello (copy)"]
    asked = [page.locator("article.user .body").all_inner_texts() for page in (one, other)]
    assert asked == [["Hello", "This"], ["Hello", "This", "That"]]
    shown = [page.locator(".body").all_inner_texts() for page in (one, other)]
    for page in (one, other):
        page.reload()
    assert [page.locator(".body").all_inner_texts() for page in (one, other)] == shown
    assert len(shown[0][-1]) > 20


def test_a_hundred_messages_and_the_next(page):
    roles = ("user", "assistant")
    fill_history(page, [{"role": roles[n % 2], "content": f"m {n}", "state": "stop"} for n in range(100)])
    assert page.locator("article").count() == 100
    ask(page, "And now?", max_tokens=5)
    wait_until(page, "Done")
    assert page.locator("article").count() == 102
    assert page.evaluate("(() => { const l = document.getElementById('log');"
                         "return l.scrollHeight - l.scrollTop - l.clientHeight < 60; })()")  # fmt: skip


@pytest.mark.parametrize("width", [320, 1200])
def test_nothing_is_cut_off_in_a_window_of_any_width(page, width):
    page.set_viewport_size({"width": width, "height": 600})
    long = "word" * 60
    code = f"```\n{long}\n```"
    fill_history(page, [{"role": "user", "content": long}, {"role": "assistant", "content": code, "state": "stop"}])
    page.evaluate("document.getElementById('more').open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("#send", "#text", "#model", "#chats", "#new", "#system"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0, name
        assert box["x"] + box["width"] <= width, name


def test_the_keyboard_alone_is_enough(page, batch):
    assert page.evaluate("document.activeElement.id") == "text"

    def type_message(page):
        page.focus("#text")
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        page.keyboard.press("Enter")

    with half_answered(page, batch, type_message):
        assert page.text_content("article.user .body") == "one\ntwo"
        page.keyboard.press("Escape")
        wait_until(page, "Stopped")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"model", "chats", "new", "log", "Edit", "Retry", "Settings", "text"} <= reached
    page.focus("summary")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "system"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "text"
    assert not page.locator("#system").is_visible()


@pytest.mark.parametrize("width", [320, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_nothing_to_report(page, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 700})
    report(axe, page)
    answer = (
        "### Title\n\nA `word`, [a link](https://example.org)\n\n- a\n\n> q\n\n|a|b|\n|-|-|\n|1|2|\n\n```c\nint i;\n```"
    )
    shared = {"role": "assistant", "model": "small", "reasoning": "Well.", "figures": "8 tokens", "runs": [1, 2, 3]}
    failed = {"role": "assistant", "content": "", "state": "failed", "error": "It is full."}
    question = {"role": "user", "content": "x"}
    fill_history(page, [question, {**shared, "content": answer, "state": "length"}, question, failed])
    report(axe, page)
    page.evaluate("document.getElementById('drafts').click()")
    page.click("text=Thoughts")
    page.click("article.user >> nth=0 >> text=Edit")
    report(axe, page)
    page.evaluate("document.getElementById('more').open = true")
    report(axe, page)


def report(axe, page):
    found = axe.Axe().run(page).response["violations"]
    assert not [(one["id"], node["target"], node["failureSummary"]) for one in found for node in one["nodes"]]


@pytest.mark.parametrize("text", SCRIPTS)
def test_scripts_that_are_typed_or_answered_are_texts(page, text):
    ask(page, text, max_tokens=3)
    wait_until(page, "Done")
    assert page.text_content("article.user .body") == text
    fill_history(page, [{"role": "user", "content": text}, {"role": "assistant", "content": text, "state": "stop",
                         "reasoning": text, "model": text, "runs": [0, 5]}])  # fmt: skip
    for _ in range(2):
        assert page.locator("#log script, #log img, #log svg, #log iframe, #log [onclick], #log a").count() == 0
        page.evaluate("document.getElementById('drafts').click()")
    assert page.evaluate("window.hit === undefined")


def test_accepted_drafts_are_coloured_on_request(page):
    message = {"role": "assistant", "content": "abcdef", "state": "stop", "runs": [1, 2, 1, 1, 1]}
    fill_history(page, [{"role": "user", "content": "x"}, message])
    assert page.locator("mark").count() == 0
    page.evaluate("document.getElementById('drafts').click()")
    assert page.locator("mark").all_inner_texts() == ["bc", "e"]
    assert page.text_content("article.assistant .body") == "abcdef"


def test_conversations_are_cleared_on_request(page):
    ask(page, max_tokens=3)
    wait_until(page, "Done")
    page.evaluate("document.getElementById('more').open = true")
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#clear")
    wait_until(page, "All conversations are deleted")
    assert page.locator("article").count() == 0
    assert page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('edge-rt.chat')).length") == 0


def test_a_key_is_asked_for_and_forgotten_with_the_tab(browser, native_package):
    with served(models_of({"small": native_package}, ctx=256), key=KEY) as (_, client):
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto(str(client.base_url))
        wait_until(page, "The API key is wrong or missing")
        assert page.evaluate("document.activeElement.id") == "key"
        page.fill("#key", KEY)
        page.press("#key", "Tab")
        page.wait_for_selector("#model option[value=small]", state="attached")
        ask(page, max_tokens=3)
        wait_until(page, "Done")
        assert KEY not in page.evaluate("JSON.stringify(localStorage)")
        assert KEY in page.evaluate("JSON.stringify(sessionStorage)")
        context.close()
