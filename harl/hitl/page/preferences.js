// The settings dialog, with the keys that can be moved.

import { COMMANDS, commandCodes, controlCode, keyName, moveKey, resetKeys } from "./keys.js";
import { settings } from "./settings.js";

const MODES = { "": "The best there is", state: "Drawn here", jpeg: "Rendered by the run", none: "Numbers alone" };

export class Preferences {
  constructor(dom, agent, changed) {
    Object.assign(this, { dom, agent, changed });
    for (const name of ["name", "mode", "fps", "theme"]) this.bind(name, "value");
    for (const name of ["shortcuts", "trails", "buzz"]) this.bind(name, "checked");
    dom.reset.addEventListener("click", () => {
      resetKeys();
      this.list();
      this.note("All keys are where they were.");
    });
    dom.open.addEventListener("click", () => this.open());
    dom.dialog.addEventListener("close", () => this.capture(null));
    applyTheme();
  }

  bind(name, property) {
    const field = this.dom[name];
    field.addEventListener("change", () => {
      const value = field[property];
      settings.set(name, name === "fps" ? Number(value) : name === "name" ? value.trim() : value);
      if (name === "theme") applyTheme();
      this.changed(name);
    });
  }

  open() {
    this.list();
    this.note("");
    this.dom.dialog.showModal();
  }

  // Offer the kinds of picture that the room has.
  offer(modes) {
    const options = ["", ...modes, "none"].filter((mode, i, all) => mode in MODES && all.indexOf(mode) === i);
    this.dom.mode.replaceChildren(...options.map((mode) => new Option(MODES[mode], mode)));
    for (const name of ["name", "mode", "fps", "theme"]) this.dom[name].value = settings.get(name);
    for (const name of ["shortcuts", "trails", "buzz"]) this.dom[name].checked = settings.get(name);
  }

  list() {
    const commands = Object.keys(COMMANDS).map((id) => [`command ${id}`, COMMANDS[id][0], commandCodes(id)]);
    const controls = (this.agent()?.controls ?? []).map((each) => [`control ${each.id}`, each.label, [controlCode(each)]]);
    this.dom.keymap.replaceChildren(...[...controls, ...commands].map(([entry, label, codes]) => {
      const item = document.createElement("li");
      const name = document.createElement("span");
      name.textContent = label;
      const key = document.createElement("button");
      key.type = "button";
      key.textContent = codes.map(keyName).filter(Boolean).join(" or ") || "none";
      key.setAttribute("aria-label", `${label}: ${key.textContent}. Change`);
      key.addEventListener("click", () => this.capture(key, entry, label));
      item.append(name, key);
      return item;
    }));
  }

  // Wait for the new key of an entry; null stops waiting.
  capture(button, entry, label) {
    this.stop?.();
    this.stop = null;
    if (!button) return;
    const before = button.textContent;
    button.textContent = "press a key";
    button.classList.add("waiting");
    const press = (event) => {
      if (event.code === "Tab") return this.capture(null);
      event.preventDefault();
      event.stopPropagation();
      if (event.code === "Escape") {
        this.capture(null);
        return this.note(`${label} stays where it was.`);
      }
      const taken = moveKey(entry, event.code, this.agent());
      this.capture(null);
      if (taken) return this.note(`${keyName(event.code)} is taken by “${taken}”; move that one first.`);
      this.list();
      this.note(`${label} is now ${keyName(event.code)}.`);
      this.changed("keys");
    };
    button.addEventListener("keydown", press);
    this.stop = () => {
      button.removeEventListener("keydown", press);
      button.classList.remove("waiting");
      button.textContent = before;
    };
  }

  note(text) {
    this.dom.note.textContent = text;
  }
}

function applyTheme() {
  document.documentElement.dataset.theme = settings.get("theme");
}
