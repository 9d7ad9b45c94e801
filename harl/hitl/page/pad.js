// The keys of an agent on the screen: a legend that lights up, and buttons for fingers.

import { holdButton, whenUnheard } from "./controls.js";
import { controlCode, keyName } from "./keys.js";

const ARROWS = ["ArrowUp", "ArrowLeft", "ArrowRight", "ArrowDown"];
const CENTRE = 0.22; // part of the pad's width around its middle that presses nothing

export class Pad {
  constructor(element, held) {
    this.element = element;
    this.held = held;
    this.caps = new Map();
    held.addEventListener("change", () => this.light());
  }

  // Show the controls of an agent.
  show(agent) {
    this.caps.clear();
    this.element.replaceChildren();
    if (!agent) return;
    const arrows = ARROWS.map((code) => agent.controls.find((control) => control.code === code));
    if (arrows.every(Boolean)) this.element.append(this.cross(agent, arrows));
    const others = agent.controls.filter((control) => !arrows.every(Boolean) || !arrows.includes(control));
    if (others.length > 0) this.element.append(this.grid(others));
    this.element.setAttribute("aria-label", `Keys of ${agent.name}`);
    this.light();
  }

  cap(control) {
    const cap = document.createElement("button");
    cap.type = "button";
    cap.className = "cap";
    const key = document.createElement("kbd");
    key.textContent = keyName(controlCode(control)) || "•";
    const label = document.createElement("span");
    label.textContent = control.label;
    cap.append(key, label);
    cap.setAttribute("aria-pressed", "false");
    this.caps.set(control.id, cap);
    return cap;
  }

  grid(controls) {
    const grid = document.createElement("div");
    grid.className = "grid";
    for (const control of controls) {
      const cap = this.cap(control);
      holdButton(cap, (down) => this.press(control.id, "button", down));
      grid.append(cap);
    }
    return grid;
  }

  press(id, source, down) {
    if (down) this.held.press(id, source);
    else this.held.release(id, source);
  }

  // One area for a thumb that slides from one way to the next; two ways at once where the action can have both.
  cross(agent, arrows) {
    const cross = document.createElement("div");
    cross.className = "cross";
    const [up, left, right, down] = arrows;
    for (const control of arrows) {
      const cap = this.cap(control);
      cap.classList.add(control.code.slice(5).toLowerCase());
      // Fingers are followed by the whole cross; the caps are buttons for keys alone.
      cap.addEventListener("keydown", (event) => {
        if (event.code !== "Space" && event.code !== "Enter") return;
        event.preventDefault();
        if (!event.repeat) this.press(control.id, "button", true);
      });
      for (const end of ["keyup", "blur"]) cap.addEventListener(end, () => this.press(control.id, "button", false));
      cross.append(cap);
    }
    const follow = (event) => {
      const box = cross.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width - 0.5;
      const y = (event.clientY - box.top) / box.height - 0.5;
      const wide = Math.abs(x) > Math.abs(y);
      const both = left.group !== up.group && Math.min(Math.abs(x), Math.abs(y)) > 0.45 * Math.max(Math.abs(x), Math.abs(y));
      const off = Math.hypot(x, y) < CENTRE / 2;
      this.press(left.id, "touch", !off && x < 0 && (wide || both));
      this.press(right.id, "touch", !off && x > 0 && (wide || both));
      this.press(up.id, "touch", !off && y < 0 && (!wide || both));
      this.press(down.id, "touch", !off && y > 0 && (!wide || both));
    };
    let pointer = null;
    const letGo = () => {
      pointer = null;
      this.held.clear("touch");
    };
    cross.addEventListener("pointerdown", (event) => {
      if (pointer !== null || event.button !== 0) return;
      event.preventDefault();
      pointer = event.pointerId;
      cross.setPointerCapture(pointer);
      follow(event);
    });
    cross.addEventListener("pointermove", (event) => { if (event.pointerId === pointer) follow(event); });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
      cross.addEventListener(end, (event) => { if (event.pointerId === pointer) letGo(); });
    }
    cross.addEventListener("contextmenu", (event) => event.preventDefault());
    whenUnheard(letGo);
    return cross;
  }

  light() {
    for (const [id, cap] of this.caps) {
      const on = this.held.has(id);
      cap.classList.toggle("on", on);
      cap.setAttribute("aria-pressed", String(on));
    }
  }
}
