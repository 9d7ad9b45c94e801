// Gamepads. Browsers report their state, not its changes: it is read with every picture while one is connected.

const DEAD_ZONE = 0.15;
const FIRM = 0.5; // how far a stick counts as a key, where actions have no strength
const STICKS = [
  [0, 1, ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]],
  [2, 3, ["KeyA", "KeyD", "KeyW", "KeyS"]],
];
const BUTTONS = { 12: "ArrowUp", 13: "ArrowDown", 14: "ArrowLeft", 15: "ArrowRight" };
const COMMANDS = { 0: "praise", 1: "blame", 5: "take", 9: "pause" };

// Calls `command(id, down)` for buttons of the page, presses controls of `agent()` in `held`, and `shown(name or null)`
// when a gamepad comes or goes.
export class Gamepads {
  constructor(held, agent, command, shown) {
    Object.assign(this, { held, agent, command, shown });
    this.down = new Set();
    this.polling = false;
    window.addEventListener("gamepadconnected", (event) => {
      this.shown(event.gamepad.id);
      this.start();
    });
    window.addEventListener("gamepaddisconnected", () => {
      this.clear();
      this.shown(this.pads()[0]?.id ?? null);
    });
  }

  pads() {
    return [...(navigator.getGamepads?.() ?? [])].filter((pad) => pad?.connected && pad.mapping === "standard");
  }

  start() {
    if (this.polling) return;
    this.polling = true;
    const poll = () => {
      const pads = this.pads();
      this.polling = pads.length > 0;
      if (!this.polling) return;
      if (document.hasFocus()) this.read(pads);
      requestAnimationFrame(poll);
    };
    requestAnimationFrame(poll);
  }

  clear() {
    this.held.clear("pad");
    for (const id of this.down) this.command(id, false);
    this.down.clear();
  }

  read(pads) {
    const strengths = new Map();
    const push = (code, strength) => strengths.set(code, Math.max(strength, strengths.get(code) ?? 0));
    const pressed = new Set();
    const graded = this.agent()?.action_space.kind === "box";
    for (const pad of pads) {
      for (const [x, y, codes] of STICKS) {
        stick(pad.axes[x] ?? 0, pad.axes[y] ?? 0).forEach((strength, i) => {
          if (graded ? strength > 0 : strength > FIRM) push(codes[i], graded ? strength : 1);
        });
      }
      for (const [index, code] of Object.entries(BUTTONS)) if (pad.buttons[index]?.pressed) push(code, 1);
      for (const [index, id] of Object.entries(COMMANDS)) if (pad.buttons[index]?.pressed) pressed.add(id);
    }
    for (const control of this.agent()?.controls ?? []) {
      const strength = strengths.get(control.code);
      if (strength) this.held.press(control.id, "pad", Math.round(strength * 50) / 50);
      else this.held.release(control.id, "pad");
    }
    for (const id of pressed) if (!this.down.has(id)) this.command(id, true);
    for (const id of this.down) if (!pressed.has(id)) this.command(id, false);
    this.down = pressed;
  }
}

// Strength to the left, right, up and down, 0..1 each, with a round dead zone.
export function stick(x, y) {
  const length = Math.hypot(x, y);
  if (length < DEAD_ZONE) return [0, 0, 0, 0];
  const scale = (Math.min(1, length) - DEAD_ZONE) / (1 - DEAD_ZONE) / length;
  return [-x, x, -y, y].map((part) => Math.max(0, part * scale));
}
