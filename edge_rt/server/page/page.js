// The page: conversations, which live in this browser, and answers, which are read as they come. Whatever a model or a
// person wrote becomes text nodes; no text is ever read as HTML.

import { Kept, chatOf, newChat, sameMessages } from "./conversations.js";
import { EventSplitter, addRun, markdown, spokenLength } from "./text.js";

const OPEN = "edge-rt.open";
const KEY = "edge-rt.key";
const DRAW_MS = 80;
const SAVE_MS = 500;
const SPEAK_MS = 2000;
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const SETTINGS = ["model", "system", "schema", ...NUMBERS];

const $ = (id) => document.getElementById(id);
const log = $("log");
const kept = new Kept(localStorage);
let chat = null;
let isLeaving = false;
let running = null; // {abort, message, tokens, steps, begun, ...} of the answer under way.

// --- Nodes ---------------------------------------------------------------------------------------------------------

function make(tag, options = {}, children = []) {
  const node = document.createElement(tag);
  Object.assign(node, options);
  node.append(...children);
  return node;
}

function nodeOf(part) {
  if (typeof part === "string") return document.createTextNode(part);
  const children = part.children.map(nodeOf);
  if (part.tag === "pre") {
    const code = make("pre", { tabIndex: 0 }, [make("code", {}, children)]);
    return part.language ? make("div", {}, [make("p", { className: "language", textContent: part.language }), code]) : code;
  }
  if (part.tag === "table") {
    return make("div", { className: "table", tabIndex: 0 }, [make("table", {}, [make("tbody", {}, children)])]);
  }
  const node = make(part.tag, {}, children);
  if (part.tag === "a") Object.assign(node, { href: part.href, rel: "noreferrer noopener", target: "_blank" });
  if (part.tag === "ol" && part.start !== 1) node.start = part.start;
  return node;
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function answerNodes(message) {
  if ($("drafts").checked && message.runs?.length) {
    const characters = Array.from(message.content);
    const spans = [];
    let at = 0;
    message.runs.forEach((count, index) => {
      const text = characters.slice(at, at + count).join("");
      at += count;
      if (text) spans.push(index % 2 ? make("mark", { textContent: text }) : document.createTextNode(text));
    });
    spans.push(document.createTextNode(characters.slice(at).join("")));
    return [make("div", { className: "drafted" }, spans)];
  }
  if (message.isJSON) return [nodeOf({ tag: "pre", language: "JSON", children: [indented(message.content)] })];
  return markdown(message.content).map(nodeOf);
}

const REASONS = {
  answering: "",
  stopped: "Stopped.",
  length: "Cut at the most tokens.",
  context_full: "Cut: the model's context is full.",
  repetition: "Ended: it repeated itself.",
};

function draw(message) {
  const old = nodes.get(message);
  const isRunning = message === running?.message;
  const node = make("article", { className: isRunning ? "assistant running" : message.role });
  node.append(make("h3", { textContent: message.role === "user" ? "You" : message.model || "Answer" }));
  if (message.reasoning) {
    const wasOpen = old?.querySelector(".thoughts")?.open ?? false;
    node.append(
      make("details", { className: "thoughts", open: wasOpen }, [
        make("summary", { textContent: "Thoughts" }),
        make("div", { textContent: message.reasoning }),
      ]),
    );
  }
  const body = make("div", { className: "body" });
  if (message.role === "user") body.textContent = message.content;
  else body.append(...answerNodes(message));
  node.append(body);
  const isElsewhere = message.state === "answering" && !isRunning;
  const why = message.error ?? (isElsewhere ? "Another tab is writing this." : REASONS[message.state]);
  if (why) node.append(make("p", { className: message.error ? "why bad" : "why", textContent: why }));
  if (message.figures) node.append(make("p", { className: "why", textContent: message.figures }));
  if (!isRunning) node.append(actions(message));
  if (old) old.replaceWith(node);
  else log.append(node);
  nodes.set(message, node);
}

const nodes = new Map();

function actions(message) {
  const acts = make("div", { className: "acts" });
  const add = (text, label, act) => {
    const button = make("button", { type: "button", textContent: text });
    button.setAttribute("aria-label", label);
    button.addEventListener("click", act);
    acts.append(button);
  };
  if (message.role === "user") add("Edit", "Edit this message", () => edit(message));
  else if (message === chat.messages.at(-1)) add("Retry", "Answer again", () => retry());
  if (navigator.clipboard && message.content) {
    add("Copy", "Copy this text", async () => {
      await navigator.clipboard.writeText(message.content);
      say("Copied.");
    });
  }
  return acts;
}

function drawAll() {
  nodes.clear();
  log.replaceChildren();
  if (!chat.messages.length) {
    const where = `The model runs on ${location.host}; what is said stays there and in this browser.`;
    const lines = [make("strong", { textContent: "What shall we talk about?" }), make("span", { textContent: where })];
    log.append(make("p", { className: "empty" }, lines));
  }
  chat.messages.forEach(draw);
  log.scrollTop = log.scrollHeight;
}

function readsEnd() {
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

/** Draws, and follows the end only if the reader is there. */
function redraw(message) {
  const isAtEnd = readsEnd();
  draw(message);
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function say(text, isBad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", isBad);
}

// --- What is kept --------------------------------------------------------------------------------------------------

const FULL = "This browser keeps no more: clear conversations in the settings.";

function keep(one) {
  const state = kept.keep(one);
  if (state === "full") say(FULL, true);
  if (state === "copied" && one === chat) {
    sessionStorage.setItem(OPEN, chat.id);
    listChats();
    say("Another tab went on with this conversation: here it goes on as a copy.");
  }
}

function keepSetting(id) {
  if (!kept.set(id, id === "drafts" ? $(id).checked : $(id).value)) say(FULL, true);
}

function listChats() {
  const chats = kept.chats();
  if (!chats.some((one) => one.id === chat.id)) chats.unshift(chat);
  $("chats").replaceChildren(...chats.map((one) => make("option", { value: one.id, textContent: one.title })));
  $("chats").value = chat.id;
  document.title = chat.messages.length ? `${chat.title} - edge-rt` : "edge-rt";
}

function openChat(next) {
  running?.abort.abort();
  chat = next;
  stopUnfinished();
  sessionStorage.setItem(OPEN, chat.id);
  listChats();
  drawAll();
  say("");
}

/** Marks what was being written when its page was left. */
function stopUnfinished() {
  for (const message of chat.messages) if (message.state === "answering") message.state = "stopped";
}

/** Shows what another tab has written into the conversation that is open here too. */
function catchUp() {
  const next = kept.chat(chat.id);
  if (next === null || next.stamp === chat.stamp) return;
  const isAtEnd = readsEnd();
  const same = sameMessages(chat, next);
  next.messages.splice(0, same, ...chat.messages.slice(0, same));
  forget(same);
  chat = next;
  chat.messages.slice(Math.max(0, same - 1)).forEach(draw);
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

addEventListener("storage", (event) => {
  const id = chatOf(event.key);
  if (id === null) return;
  const isOpen = id === chat.id;
  if (event.newValue === null) {
    if (!isOpen) return listChats();
    chat.isDeleted = true;
    openChat(newChat());
    return say("The conversation was deleted in another tab.");
  }
  // Who answers or edits here goes on, and keeps a copy.
  if (isOpen && !running && !log.querySelector(".edit")) catchUp();
  if (![...$("chats").options].some((one) => one.value === id)) listChats();
});

// --- Answers -------------------------------------------------------------------------------------------------------

function headers() {
  const key = $("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function request(messages, schema) {
  const system = $("system").value.trim();
  const body = {
    model: $("model").value || "default",
    messages: [
      ...(system ? [{ role: "system", content: system }] : []),
      // Answers that failed before their first word are none.
      ...messages.filter((one) => one.content).map(({ role, content }) => ({ role, content })),
    ],
    stream: true,
    stream_options: { include_usage: true, include_drafts: true },
  };
  for (const id of NUMBERS) {
    const value = $(id).valueAsNumber;
    if (!Number.isNaN(value)) body[id] = value;
  }
  if (schema !== null) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return body;
}

/** Returns the schema of the settings; null: there is none; undefined: it is wrong, as the status line says. */
function readSchema() {
  const text = $("schema").value.trim();
  if (!text) return null;
  try {
    const schema = JSON.parse(text);
    if (schema !== null && typeof schema === "object" && !Array.isArray(schema)) return schema;
    say("The schema in the settings is no JSON object.", true);
  } catch (error) {
    say(`The schema in the settings is no JSON: ${error.message}.`, true);
  }
  return undefined;
}

function ask(text) {
  chat.messages.push({ role: "user", content: text });
  if (chat.messages.length === 1) {
    chat.title = text.replace(/\s+/g, " ").slice(0, 40) || "Conversation";
    log.replaceChildren();
  }
  return answer();
}

async function answer() {
  const schema = readSchema();
  if (schema === undefined) return redrawAll();
  stopUnfinished();
  const body = request(chat.messages, schema);
  const message = { role: "assistant", content: "", reasoning: "", runs: [], state: "answering", isJSON: schema !== null };
  const own = { abort: new AbortController(), message, chat, tokens: 0, steps: 0, accepted: 0, begun: 0, spoken: 0, said: 0 };
  running = own;
  chat.messages.push(message);
  chat.changed = Date.now();
  keep(chat);
  listChats();
  for (const one of chat.messages.slice(-3)) draw(one);
  log.scrollTop = log.scrollHeight;
  busy(true);
  say("Waiting for the answer.");
  try {
    await follow(own, body);
  } catch (error) {
    if (own.abort.signal.aborted || isLeaving) message.state = "stopped";
    else {
      message.state = "failed";
      message.error = error.message;
    }
  }
  speak(own, true);
  if (message.state === "answering") {
    message.state = "failed";
    message.error = "The connection ended before the answer did.";
  }
  if (running === own) {
    running = null;
    busy(false);
    const state = { stopped: "Stopped.", failed: message.error }[message.state] ?? "Done.";
    say(state, message.state === "failed");
  }
  keep(own.chat);
  if (own.chat === chat) redraw(message);
  readStatus();
}

async function follow(own, body) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal: own.abort.signal,
  });
  if (!response.ok) throw await failure(response);
  const splitter = new EventSplitter();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let drawn = 0;
  let saved = performance.now();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    for (const data of splitter.push(value)) {
      if (data !== "[DONE]") take(own, JSON.parse(data));
    }
    const now = performance.now();
    if (own.chat === chat && now - drawn > DRAW_MS) {
      redraw(own.message);
      showFigures(own);
      // A long text takes long to draw: reading it comes first.
      drawn = Math.max(now, performance.now() + 2 * (performance.now() - now) - DRAW_MS);
    }
    if (now - saved > SAVE_MS) {
      keep(own.chat);
      saved = now;
    }
    speak(own, false);
  }
}

async function failure(response) {
  let text = `The server answered ${response.status}.`;
  try {
    text = (await response.json()).error.message;
  } catch {
    // No JSON: a proxy's words are not the server's.
  }
  if (response.status === 401) askForKey();
  return new Error(text);
}

function askForKey() {
  $("more").open = true;
  $("key").focus();
}

function take(own, chunk) {
  if (chunk.error) throw new Error(chunk.error.message);
  const { message } = own;
  message.model = chunk.model;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const text = choice.delta?.content ?? "";
  const thought = choice.delta?.reasoning_content ?? "";
  if (text || thought) {
    if (!own.begun) {
      own.begun = performance.now();
      say("Answering.");
    }
    message.content += text;
    message.reasoning += thought;
  }
  const step = chunk.edge_rt ?? {};
  if (step.tokens) {
    own.tokens += step.tokens;
    own.accepted += step.accepted;
    own.steps += 1;
    own.last = performance.now();
  }
  const length = Array.from(text).length;
  const drafted = Math.min(length, step.accepted_characters ?? 0);
  addRun(message.runs, drafted, true);
  addRun(message.runs, length - drafted, false);
  if (choice.finish_reason) {
    message.state = step.finish ?? choice.finish_reason;
    const times = chunk.timings;
    const perStep = own.steps ? own.tokens / own.steps : 1;
    const guesses = times.draft_n ? `, ${times.draft_n_accepted} of ${times.draft_n} guesses right` : "";
    const per = times.predicted_per_second.toFixed(1);
    message.figures = `${times.predicted_n} tokens, ${per} per second, ${perStep.toFixed(2)} per step${guesses}`;
    speedText = `${per} tokens/s · ${perStep.toFixed(2)} per step`;
    showFigures(null);
  }
}

/** Gives whole sentences, or what has come in two seconds, to screen readers: not every token. */
function speak(own, isEnd) {
  const now = performance.now();
  const { content } = own.message;
  const end = spokenLength(content, own.spoken, isEnd || now - own.said > SPEAK_MS);
  if (end <= own.spoken || own.chat !== chat) return;
  if (!own.spoken) $("spoken").replaceChildren();
  $("spoken").append(make("p", { textContent: content.slice(own.spoken, end) }));
  own.spoken = end;
  own.said = now;
}

function busy(isBusy) {
  log.setAttribute("aria-busy", String(isBusy));
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
}

function retry() {
  if (running || readSchema() === undefined) return;
  forget(chat.messages.length - 1);
  $("text").focus();
  answer();
}

function forget(from) {
  for (const gone of chat.messages.splice(from)) {
    nodes.get(gone)?.remove();
    nodes.delete(gone);
  }
}

function redrawAll() {
  const top = log.scrollTop;
  drawAll();
  log.scrollTop = top;
}

function edit(message) {
  if (running) return;
  const text = make("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1) });
  text.setAttribute("aria-label", "The message");
  const form = make("form", { className: "edit" }, [
    text,
    make("div", { className: "acts" }, [
      make("button", { type: "submit", textContent: "Send again" }),
      make("button", { type: "button", textContent: "Cancel", onclick: () => leave() }),
    ]),
  ]);
  const leave = () => {
    draw(message);
    catchUp();
    $("text").focus();
  };
  const send = (event) => {
    event.preventDefault();
    if (running || !text.value.trim()) return;
    const at = chat.messages.indexOf(message);
    forget(at);
    $("text").focus();
    ask(text.value);
  };
  form.addEventListener("submit", send);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    else if (sends(event)) send(event);
  });
  const node = nodes.get(message);
  node.replaceChildren(node.querySelector("h3"), form);
  text.focus();
}

// --- Figures -------------------------------------------------------------------------------------------------------

let speedText = "";
let memoryText = "";

function showFigures(own) {
  if (own?.steps > 1) {
    const seconds = (own.last - own.begun) / 1e3;
    const speed = seconds > 0 ? (own.tokens / seconds).toFixed(1) : "...";
    speedText = `${speed} tokens/s · ${(own.tokens / own.steps).toFixed(2)} per step`;
  }
  $("figures").textContent = [speedText, memoryText].filter(Boolean).join(" · ");
}

const megabytes = (bytes) => `${Math.round(bytes / 1e6).toLocaleString("en")} MB`;

async function readStatus() {
  try {
    const response = await fetch("v1/edge/status", { headers: headers() });
    if (!response.ok) return;
    const { memory, models, answering, waiting } = await response.json();
    const planned = models.reduce((sum, one) => sum + one.planned_bytes, 0);
    const of = planned ? ` of ${megabytes(planned)} planned` : "";
    const queue = [answering && `${answering} answering`, waiting && `${waiting} waiting`].filter(Boolean);
    memoryText = [`memory ${megabytes(memory.resident_bytes)}${of}`, ...queue].join(" · ");
    showFigures(null);
  } catch {
    memoryText = "the server is not there";
    showFigures(null);
  }
}

let ticks = 0;
setInterval(() => {
  ticks += 1;
  if (!document.hidden && (running || ticks % 10 === 0)) readStatus();
}, 1000);

async function listModels() {
  let names = [];
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) throw await failure(response);
    names = (await response.json()).data.map((one) => one.id);
    say("");
  } catch (error) {
    say(error.message, true);
  }
  const { model } = kept.settings();
  const usual = make("option", { value: "default", textContent: "the usual model" });
  $("model").replaceChildren(usual, ...names.map((name) => make("option", { value: name, textContent: name })));
  $("model").value = names.includes(model) ? model : "default";
}

// --- Beginning -----------------------------------------------------------------------------------------------------

function sends(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value;
  if (running || !text.trim()) return;
  $("text").value = "";
  $("more").open = false;
  ask(text);
});
$("text").addEventListener("keydown", (event) => {
  if (!sends(event)) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if ($("more").open) {
    $("more").open = false;
    $("text").focus();
  } else running?.abort.abort();
});
$("stop").addEventListener("click", () => {
  running?.abort.abort();
  $("text").focus();
});
$("new").addEventListener("click", () => {
  openChat(newChat());
  $("text").focus();
});
$("chats").addEventListener("change", () => openChat(kept.chat($("chats").value) ?? newChat()));
$("delete").addEventListener("click", () => {
  kept.remove(chat);
  openChat(newChat());
  say("The conversation is deleted.");
});
$("clear").addEventListener("click", () => {
  if (!confirm("Delete all conversations that are kept in this browser?")) return;
  for (const one of [chat, ...kept.chats()]) kept.remove(one);
  openChat(newChat());
  say("All conversations are deleted.");
});

for (const id of SETTINGS) $(id).addEventListener("change", () => keepSetting(id));
$("drafts").addEventListener("change", () => {
  keepSetting("drafts");
  redrawAll();
});
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  $("key").blur();
});
$("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, $("key").value);
  listModels();
  readStatus();
});
// Browsers end the connection before the page is gone, as an error that is none.
addEventListener("beforeunload", () => {
  isLeaving = true;
  setTimeout(() => (isLeaving = false), 1000);
});
addEventListener("pagehide", () => {
  if (running) keep(chat);
});

const settings = kept.settings();
for (const id of SETTINGS) if (id !== "model" && typeof settings[id] === "string") $(id).value = settings[id];
$("drafts").checked = settings.drafts === true;
$("key").value = sessionStorage.getItem(KEY) ?? "";
openChat(kept.chat(sessionStorage.getItem(OPEN)) ?? newChat());
listModels();
readStatus();
