// What a person has chosen, kept in this browser.

const STORE = "harl.page";
const DEFAULTS = {
  name: "",
  takeover: "hold", // hold | sticky | any
  mode: "", // state | jpeg | none; empty = the best that the room has
  fps: 15,
  theme: "auto",
  shortcuts: true,
  trails: true,
  buzz: false,
  keys: {}, // what a key does → its code, where it is not the default
  consent: "", // version of the text that was agreed to
};

// Events: change.
class Settings extends EventTarget {
  constructor() {
    super();
    this.values = { ...DEFAULTS, ...read() };
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    this.values[name] = value;
    try {
      localStorage.setItem(STORE, JSON.stringify(this.values));
    } catch {
      // A browser that keeps nothing: the choice holds until the page is closed.
    }
    this.dispatchEvent(new CustomEvent("change", { detail: name }));
  }
}

function read() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORE) ?? "{}");
    return Object.fromEntries(Object.entries(stored).filter(([name, value]) => typeof value === typeof DEFAULTS[name]));
  } catch {
    return {};
  }
}

export const settings = new Settings();
