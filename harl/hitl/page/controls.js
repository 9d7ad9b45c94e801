// The keyboard: keys act while the play area has the focus, and are let go whenever the page may no longer hear them.

import { COMMANDS, commandAt, controlAt } from "./keys.js";
import { settings } from "./settings.js";

const MODIFIERS = ["ctrlKey", "altKey", "metaKey"];

// Calls `command(id, down)` for the page's own keys, and presses controls of `agent()` in `held`.
export class Keyboard {
  constructor(play, held, agent, command) {
    this.held = held;
    this.agent = agent;
    this.command = command;
    this.down = new Map(); // code → how to let go
    play.addEventListener("keydown", (event) => this.press(event));
    // Wherever the focus is by then: a key that is let go is let go.
    window.addEventListener("keyup", (event) => this.lift(event.code));
    whenUnheard(() => this.clear());
  }

  press(event) {
    if (MODIFIERS.some((name) => event[name])) return;
    const { code } = event;
    const control = controlAt(this.agent(), code);
    const command = control ? null : commandAt(code);
    if (!control && (!command || (COMMANDS[command][2] && !settings.get("shortcuts")))) return;
    event.preventDefault();
    if (event.repeat || this.down.has(code)) return;
    if (control) {
      this.down.set(code, () => this.held.release(control.id, `key ${code}`));
      this.held.press(control.id, `key ${code}`);
    } else {
      this.down.set(code, () => this.command(command, false));
      this.command(command, true);
    }
  }

  lift(code) {
    const letGo = this.down.get(code);
    this.down.delete(code);
    letGo?.();
  }

  clear() {
    for (const code of [...this.down.keys()]) this.lift(code);
  }
}

// Calls `callback` when key, pointer and gamepad events may stop coming although something is held.
export function whenUnheard(callback) {
  window.addEventListener("blur", callback);
  window.addEventListener("pagehide", callback);
  document.addEventListener("fullscreenchange", callback);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) callback();
  });
}

// A button that counts as held while a pointer, Enter or Space is down on it: calls `change(down)`.
export function holdButton(button, change) {
  let by = null;
  const set = (source) => {
    if ((source === null) === (by === null)) return;
    by = source;
    button.classList.toggle("down", by !== null);
    change(by !== null);
  };
  button.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault(); // the focus stays in the play area
    button.setPointerCapture(event.pointerId);
    set("pointer");
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
    button.addEventListener(end, () => { if (by === "pointer") set(null); });
  }
  button.addEventListener("keydown", (event) => {
    if (event.code !== "Space" && event.code !== "Enter") return;
    event.preventDefault();
    if (!event.repeat) set("key");
  });
  button.addEventListener("keyup", (event) => {
    if ((event.code === "Space" || event.code === "Enter") && by === "key") set(null);
  });
  button.addEventListener("blur", () => { if (by === "key") set(null); });
  button.addEventListener("contextmenu", (event) => event.preventDefault()); // of a long press
  whenUnheard(() => set(null));
}

// Buttons that are clicked with a pointer leave the focus in the play area, so that the keys go on working.
export function keepFocus(element, play) {
  element.addEventListener("mousedown", (event) => {
    if (!event.target.closest("button")) return;
    event.preventDefault();
    play.focus({ preventScroll: true });
  });
}
