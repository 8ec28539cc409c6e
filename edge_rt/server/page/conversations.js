// What this browser keeps: conversations, each under a key of its own, and settings. All tabs share it, and each has what it
// shows in memory. A stamp says which tab wrote a conversation last: who finds another's stamp than the one it knows writes
// a copy beside it, so that nothing of either is lost.

const CHAT = "edge-rt.chat.";
const SETTINGS = "edge-rt.settings";

function randomName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (one) => one.toString(16).padStart(2, "0")).join("");
}

export function newChat() {
  return { id: randomName(), title: "New conversation", changed: Date.now(), messages: [] };
}

/** Returns how many messages two conversations have in common at their beginning. */
export function sameMessages(one, other) {
  let count = 0;
  const most = Math.min(one.messages.length, other.messages.length);
  while (count < most && JSON.stringify(one.messages[count]) === JSON.stringify(other.messages[count])) count += 1;
  return count;
}

/** Returns the identity of the conversation that a key of the storage is of; null: of none. */
export function chatOf(key) {
  return key?.startsWith(CHAT) ? key.slice(CHAT.length) : null;
}

export class Kept {
  #storage;
  #tab = randomName();
  #writes = 0;

  constructor(storage) {
    this.#storage = storage;
  }

  #read(key) {
    try {
      return JSON.parse(this.#storage.getItem(key));
    } catch {
      return null; // Not ours, or damaged.
    }
  }

  #write(key, value) {
    try {
      this.#storage.setItem(key, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  }

  chat(id) {
    const kept = this.#read(CHAT + id);
    return Array.isArray(kept?.messages) ? kept : null;
  }

  /** Returns all conversations, the last one first. */
  chats() {
    const ids = Object.keys(this.#storage).map(chatOf).filter((id) => id !== null);
    const chats = ids.map((id) => this.chat(id)).filter((chat) => chat !== null);
    return chats.sort((a, b) => b.changed - a.changed);
  }

  /** Writes a conversation; returns "kept", "copied" if another tab went on with it, or "full". */
  keep(chat) {
    if (chat.isDeleted || !chat.messages.length) return "kept";
    const stored = this.chat(chat.id);
    const isCopy = stored !== null && stored.stamp !== chat.stamp;
    if (isCopy) Object.assign(chat, { id: randomName(), title: `${chat.title} (copy)` });
    this.#writes += 1;
    chat.stamp = `${this.#tab}.${this.#writes}`;
    if (!this.#write(CHAT + chat.id, chat)) return "full";
    return isCopy ? "copied" : "kept";
  }

  /** Forgets a conversation, which no answer under way brings back. */
  remove(chat) {
    chat.isDeleted = true;
    this.#storage.removeItem(CHAT + chat.id);
  }

  settings() {
    return this.#read(SETTINGS) ?? {};
  }

  /** Writes one setting; the others may be another tab's. Returns whether there was room. */
  set(name, value) {
    return this.#write(SETTINGS, { ...this.settings(), [name]: value });
  }
}
