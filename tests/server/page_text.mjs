// Texts of the page without a browser; run by test_page.py.
import assert from "node:assert/strict";
import { Kept, newChat, sameMessages } from "./conversations.mjs";
import { EventSplitter, addRun, inline, markdown, spokenLength, webAddress } from "./text.mjs";

/** What a browser keeps for all of its tabs. */
function storage(room = Infinity) {
  return Object.create({
    getItem(key) {
      return Object.hasOwn(this, key) ? this[key] : null;
    },
    setItem(key, value) {
      if (value.length > room) throw new Error("full");
      this[key] = value;
    },
    removeItem(key) {
      delete this[key];
    },
  });
}

function said(...contents) {
  return { ...newChat(), messages: contents.map((content) => ({ role: "user", content })) };
}

const contents = (chat) => chat.messages.map((one) => one.content).join(" ");

const facts = {
  "headings of answers leave out no level"() {
    const levels = (text) => JSON.stringify(markdown(text)).match(/"h\d"/g).join("").replaceAll(/\D/g, "");
    assert.equal(levels("### a\n# b\n#### c\n> ###### d\n\n## e"), "44565");
  },
  "tabs that go on with one conversation keep both"() {
    const shared = storage();
    const [here, there] = [new Kept(shared), new Kept(shared)];
    const mine = said("a");
    assert.equal(here.keep(mine), "kept");
    const theirs = there.chat(mine.id);
    theirs.messages.push({ role: "user", content: "b" });
    assert.equal(there.keep(theirs), "kept");
    mine.messages.push({ role: "user", content: "c" });
    assert.equal(here.keep(mine), "copied");
    assert.notEqual(mine.id, theirs.id);
    assert.equal(here.keep(mine), "kept");
    assert.equal(there.keep(theirs), "kept");
    assert.deepEqual(here.chats().map(contents).sort(), ["a b", "a c"]);
    assert.equal(sameMessages(mine, theirs), 1);
  },
  "a conversation that was deleted does not come back"() {
    const kept = new Kept(storage());
    const chat = said("a");
    kept.keep(chat);
    kept.remove(chat);
    kept.keep(chat);
    assert.deepEqual(kept.chats(), []);
  },
  "settings of other tabs stay"() {
    const shared = storage();
    new Kept(shared).set("system", "Be short.");
    new Kept(shared).set("seed", "5");
    assert.deepEqual(new Kept(shared).settings(), { system: "Be short.", seed: "5" });
  },
  "what is damaged, or has no room, harms nothing else"() {
    const shared = storage(200);
    Object.assign(shared, { "edge-rt.chat.x": "{", "edge-rt.chat.y": "[]", "edge-rt.settings": "7", other: "1" });
    const kept = new Kept(shared);
    assert.equal(kept.keep(said("a".repeat(300))), "full");
    assert.equal(kept.keep(said("a")), "kept");
    assert.deepEqual(kept.chats().map(contents), ["a"]);
    assert.ok(kept.set("seed", "1"));
  },
  "events come whole, wherever the stream is cut"() {
    const stream = ': ping\n\ndata: {"a": 1}\r\n\r\nevent: x\ndata: one\ndata:two\n\ndata: [DONE]\n\nid: 3\n\n';
    for (let size = 1; size <= stream.length; size += 1) {
      const splitter = new EventSplitter();
      const events = [];
      for (let at = 0; at < stream.length; at += size) events.push(...splitter.push(stream.slice(at, at + size)));
      assert.deepEqual(events, ['{"a": 1}', "one\ntwo", "[DONE]"]);
    }
  },
  "an event that is not ended is none"() {
    assert.deepEqual(new EventSplitter().push("data: half\n"), []);
  },
  "links lead to the web alone"() {
    assert.equal(webAddress("https://example.org/a"), "https://example.org/a");
    for (const text of ["javascript:alert(1)", "JAVASCRIPT:alert(1)", "data:text/html,x", "file:///etc", "//x", "https://", " http://x"]) {
      assert.equal(webAddress(text), null, text);
    }
    assert.deepEqual(inline("[x](javascript:alert(1))"), ["[x](javascript:alert(1))"]);
    assert.equal(inline("[x](https://example.org)")[0].href, "https://example.org/");
    assert.equal(inline("see https://example.org/a_b_c.")[1].href, "https://example.org/a_b_c");
  },
  "marks within a line"() {
    assert.deepEqual(inline("a **b *c*** `**d**` snake_case_word 2 * 3 * 4"), [
      "a ", { tag: "strong", children: ["b ", { tag: "em", children: ["c"] }] }, " ",
      { tag: "code", children: ["**d**"] }, " snake_case_word 2 * 3 * 4",
    ]);
    assert.deepEqual(inline("\\*no\\* <b>"), ["*no* <b>"]);
  },
  "blocks"() {
    const tags = (text) => markdown(text).map((block) => block.tag);
    assert.deepEqual(tags("# t\n\ntext\n- a\n- b\n\n1. x\n2. y\n\n> q\n\n---\n"), ["h4", "p", "ul", "ol", "blockquote", "hr"]);
    assert.deepEqual(markdown("```python\n# x\n<b>\n```\nend")[0], { tag: "pre", language: "python", children: ["# x\n<b>"] });
    assert.deepEqual(tags("```\nnever closed"), ["pre"]);
    const [table] = markdown("| a | b |\n|---|:-:|\n| 1 | **2** |");
    assert.equal(table.children[0].children[1].tag, "th");
    assert.equal(table.children[1].children[1].children[0].tag, "strong");
    const [list] = markdown("- a\n  - b\n    - c\n- d");
    assert.equal(list.children.length, 2);
    assert.equal(list.children[0].children[1].children[0].children[1].tag, "ul");
    assert.equal(markdown("3. a\n4. b")[0].start, 3);
  },
  "no tag is made but those of the subset"() {
    const allowed = new Set("p h4 h5 h6 ul ol li pre code strong em del a hr blockquote table tr th td".split(" "));
    const walk = (part) => {
      if (typeof part === "string") return;
      assert.ok(allowed.has(part.tag), part.tag);
      part.children.forEach(walk);
    };
    markdown("<script>alert(1)</script>\n<img src=x onerror=alert(1)>\n# <svg onload=alert(1)>\n- <b>\n|a|b|\n|-|-|\n|<i>|<u>|").forEach(walk);
  },
  "no text takes long"() {
    const begun = performance.now();
    for (const piece of ["*", "**", "_", "`", "[", "[a](", "~~", "> ", "- ", "|", "| - ", "**a", "*a ", "https://", "\\", "#", "  - a\n", "1. ", "- - "]) {
      markdown(piece.repeat(5000));
      markdown(`${piece}\n`.repeat(2000));
      markdown(`a|b\n${piece.repeat(3000)}!`);
    }
    const seconds = (performance.now() - begun) / 1e3;
    assert.ok(seconds < 20, `${seconds} s`);
  },
  "sentences are read out, and what is late"() {
    assert.equal(spokenLength("One. Two", 0, false), 4);
    assert.equal(spokenLength("Version 1.5 is", 0, false), 0);
    assert.equal(spokenLength("One. Two", 4, true), 8);
  },
  "runs of accepted characters"() {
    const runs = [];
    for (const [count, isAccepted] of [[2, true], [3, true], [1, false], [0, true], [2, false], [4, true]]) addRun(runs, count, isAccepted);
    assert.deepEqual(runs, [0, 5, 3, 4]);
  },
};

for (const [name, check] of Object.entries(facts)) {
  const begun = performance.now();
  check();
  console.log(`${name} (${Math.round(performance.now() - begun)} ms)`);
}
