// Texts without a browser: events of a stream, and the part of Markdown that is shown. Nothing here makes HTML: Markdown
// becomes plain objects ({tag, children}), from which page.js makes nodes.

/** Splits a stream of server-sent events, whatever pieces it comes in. */
export class EventSplitter {
  #rest = "";
  #lines = [];

  /** Returns the data of the events that are whole with this piece. */
  push(piece) {
    const whole = [];
    const lines = (this.#rest + piece).split("\n");
    this.#rest = lines.pop();
    for (const ended of lines) {
      const line = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
      if (line === "") {
        if (this.#lines.length) whole.push(this.#lines.join("\n"));
        this.#lines = [];
      } else if (line === "data" || line.startsWith("data:")) {
        const value = line.slice(5);
        this.#lines.push(value.startsWith(" ") ? value.slice(1) : value);
      }
    }
    return whole;
  }
}

/** Returns the address of a link if it is one of the web; null for scripts, files and everything else. */
export function webAddress(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

const DEEPEST = 6;
const INLINE = [
  // Bounded, so that no text makes them slow.
  [/(`{1,3})([^`]{1,4000})\1(?!`)/y, (m) => ({ tag: "code", children: [m[2].trim() || m[2]] })],
  [/\*\*(?=\S)([^\n]{1,1000}?\S|\S)\*\*(?!\*)/y, (m, deep) => ({ tag: "strong", children: inline(m[1], deep) })],
  [/\*(?=[^\s*])([^*\n]{0,999}[^\s*])\*/y, (m, deep) => ({ tag: "em", children: inline(m[1], deep) })],
  [/(?<!\w)_(?=[^\s_])([^_\n]{0,999}[^\s_])_(?!\w)/y, (m, deep) => ({ tag: "em", children: inline(m[1], deep) })],
  [/~~(?=\S)([^~\n]{1,1000})~~/y, (m, deep) => ({ tag: "del", children: inline(m[1], deep) })],
  [
    /\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)/y,
    (m, deep) => {
      const href = webAddress(m[2]);
      return href === null ? m[0] : { tag: "a", href, children: inline(m[1], deep) };
    },
  ],
  [/https?:\/\/[^\s<>"'`*()[\]]{1,2000}[^\s<>"'`*()[\].,;:!?]/iy, (m) => {
    const href = webAddress(m[0]);
    return href === null ? m[0] : { tag: "a", href, children: [m[0]] };
  }],
];

/** Returns a line as texts and nodes. */
export function inline(text, depth = 0) {
  if (depth > DEEPEST) return [text];
  const parts = [];
  let plain = "";
  for (let at = 0; at < text.length; ) {
    if (text[at] === "\\" && /[\\`*_~[\]()#+\-.!|]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    let part = null;
    let length = 0;
    if ("`*_~[hH".includes(text[at])) {
      for (const [pattern, make] of INLINE) {
        pattern.lastIndex = at;
        const match = pattern.exec(text);
        if (match) {
          length = match[0].length;
          part = make(match, depth + 1);
          break;
        }
      }
    }
    if (part === null || typeof part === "string") {
      plain += part ?? text[at];
      at += part === null ? 1 : length;
      continue;
    }
    if (plain) parts.push(plain);
    plain = "";
    parts.push(part);
    at += length;
  }
  if (plain) parts.push(plain);
  return parts;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,30})/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*){0,60}\|?\s*$/;

/** Returns a text as blocks: paragraphs, headings, lists, quotes, tables and code. */
export function markdown(text, depth = 0, above = []) {
  const lines = typeof text === "string" ? text.replaceAll("\r\n", "\n").split("\n") : text;
  if (depth > DEEPEST) return [{ tag: "p", children: [lines.join("\n")] }];
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const code = [];
      for (at += 1; at < lines.length && !isClosed(lines[at], fence[1]); at += 1) code.push(lines[at]);
      at += 1;
      blocks.push({ tag: "pre", language: fence[2], children: [code.join("\n")] });
    } else if (HEADING.test(line)) {
      const [, marks, title] = HEADING.exec(line);
      // Below the page's own headings, levels 1 to 3, and without gaps, whatever levels a model writes.
      while (above.at(-1) >= marks.length) above.pop();
      above.push(marks.length);
      blocks.push({ tag: `h${Math.min(6, above.length + 3)}`, children: inline(title) });
      at += 1;
    } else if (RULE.test(line)) {
      blocks.push({ tag: "hr", children: [] });
      at += 1;
    } else if (QUOTE.test(line)) {
      const inner = [];
      for (; at < lines.length && QUOTE.test(lines[at]); at += 1) inner.push(lines[at].replace(QUOTE, ""));
      blocks.push({ tag: "blockquote", children: markdown(inner, depth + 1, above) });
    } else if (ITEM.test(line)) {
      const [list, next] = readList(lines, at, depth, above);
      blocks.push(list);
      at = next;
    } else if (line.includes("|") && DASHES.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) {
      const rows = [row(line, "th")];
      for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) rows.push(row(lines[at], "td"));
      blocks.push({ tag: "table", children: rows });
    } else {
      const words = [line];
      for (at += 1; at < lines.length && !beginsBlock(lines[at]); at += 1) words.push(lines[at]);
      blocks.push({ tag: "p", children: inline(words.join("\n")) });
    }
  }
  return blocks;
}

function isClosed(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length);
}

function beginsBlock(line) {
  return !line.trim() || [FENCE, HEADING, ITEM, RULE, QUOTE].some((pattern) => pattern.test(line));
}

function readList(lines, begin, depth, above) {
  const [, indent, mark] = ITEM.exec(lines[begin]);
  const isOrdered = /\d/.test(mark);
  const items = [];
  let at = begin;
  while (at < lines.length) {
    const match = ITEM.exec(lines[at]);
    if (!match || match[1].length > indent.length + 1 || /\d/.test(match[2]) !== isOrdered) break;
    if (match[1].length < indent.length) break;
    const inner = [match[3]];
    const width = match[1].length + 1;
    for (at += 1; at < lines.length; at += 1) {
      const line = lines[at];
      const isDeeper = line.length - line.trimStart().length > width;
      if (line.trim() ? !isDeeper : !((lines[at + 1] ?? "").search(/\S/) > width)) break;
      inner.push(line);
    }
    const margin = Math.min(...inner.slice(1).filter((one) => one.trim()).map((one) => one.search(/\S/)), 1e3);
    const blocks = markdown([inner[0], ...inner.slice(1).map((one) => one.slice(margin))], depth + 1, above);
    const isTight = blocks[0]?.tag === "p";
    items.push({ tag: "li", children: isTight ? [...blocks[0].children, ...blocks.slice(1)] : blocks });
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
  }
  const list = { tag: isOrdered ? "ol" : "ul", children: items };
  if (isOrdered) list.start = parseInt(mark, 10);
  return [list, at];
}

function row(line, tag) {
  const cells = line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|");
  return { tag: "tr", children: cells.map((cell) => ({ tag, children: inline(cell.trim()) })) };
}

/** Returns how many characters of a text that grows can be read out: whole sentences, or all of it if time is up. */
export function spokenLength(text, from, isLate) {
  if (isLate) return text.length;
  const ends = [...text.slice(from).matchAll(/[.!?:;](?=\s)|\n/g)];
  return ends.length ? from + ends.at(-1).index + 1 : from;
}

/** Adds characters to runs, which are lengths of a text's parts in turn: plain, accepted, plain, ... */
export function addRun(runs, count, isAccepted) {
  if (!count) return;
  if (!runs.length) runs.push(0);
  if ((runs.length % 2 === 0) === isAccepted) runs[runs.length - 1] += count;
  else runs.push(count);
}
