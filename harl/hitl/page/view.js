// The picture: keeps the newest frame, draws it with the next screen refresh, and knows which step is on the screen.

import { drawScene, fit } from "./scene.js";
import { settings } from "./settings.js";
import { Tags } from "./tags.js";

const TRAIL = 24;
const DUSK = "rgb(18 20 23 / 26%)";
const still = matchMedia("(prefers-reduced-motion: reduce)");

// Events: drawn (detail: the frame), in the same turn in which it comes onto the screen, and just before: what is drawn
// over it, and what stands beside it, is of this frame.
export class View extends EventTarget {
  constructor(canvas, crew) {
    super();
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d");
    this.crew = crew; // (frame) → Map, as `drawScene` wants it
    this.tags = new Tags();
    this.newest = null;
    this.picture = null; // the newest picture that the browser has decoded
    this.place = null;
    this.trails = new Map();
    this.asked = false;
    this.times = [];
    this.readLook();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.readLook());
    settings.addEventListener("change", () => this.readLook());
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  resize() {
    const ratio = Math.min(2, devicePixelRatio || 1);
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.place = null;
    this.refresh();
  }

  readLook() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.look = {
      paper: colour("paper"), grid: colour("paper-grid"), axis: colour("paper-axis"), ink: colour("ink"),
      edge: colour("paper-edge"), mine: colour("mine"), onMine: colour("on-mine"),
      dark: style.colorScheme === "dark", font: getComputedStyle(document.body).fontFamily,
    };
    this.refresh();
  }

  // A frame or a tick has come; only the newest is drawn.
  show(frame) {
    this.newest = frame;
    if (frame.codec === "state") this.follow(frame);
    if (frame.codec?.startsWith("image/")) this.decode(frame);
    else this.refresh(frame);
  }

  decode(frame) {
    if (this.decoding) return; // the newest one is decoded when this one is done
    this.decoding = true;
    const url = URL.createObjectURL(new Blob([frame.payload], { type: frame.codec }));
    const image = new Image();
    image.src = url;
    const done = () => {
      URL.revokeObjectURL(url);
      this.decoding = false;
      if (this.newest !== frame && this.newest?.codec?.startsWith("image/")) this.decode(this.newest);
    };
    image.decode().then(() => {
      this.picture = image;
      this.refresh(frame);
      done();
    }, done);
  }

  follow(frame) {
    if (this.trailOf !== `${frame.env} ${frame.ep}`) this.trails.clear();
    this.trailOf = `${frame.env} ${frame.ep}`;
    for (const shape of frame.payload.shapes) {
      if (shape.kind !== "circle" || !shape.agent) continue;
      const path = this.trails.get(shape.agent) ?? [];
      path.push([shape.x, shape.y]);
      if (path.length > TRAIL) path.shift();
      this.trails.set(shape.agent, path);
    }
  }

  // Draw with the next screen refresh; `frame` is new then, else the same picture is drawn anew.
  refresh(frame = null) {
    if (frame) this.fresh = frame;
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  draw() {
    const frame = this.fresh ?? this.onScreen;
    if (!this.width || !frame) return;
    if (this.fresh) {
      this.onScreen = frame;
      this.fresh = null;
      this.times.push(performance.now());
      if (this.times.length > 30) this.times.shift();
      this.dispatchEvent(new CustomEvent("drawn", { detail: frame }));
    }
    if (frame.codec === "state") this.drawState(frame);
    else if (frame.codec) this.drawPicture();
    else this.drawNothing();
  }

  drawState(frame) {
    const scene = frame.payload;
    const aim = fit(scene.bounds, this.width, this.height);
    const { place } = this;
    if (place === null || still.matches || Math.abs(aim.scale / place.scale - 1) < 0.004) this.place = aim;
    else {
      for (const key of ["scale", "x", "y"]) place[key] += 0.2 * (aim[key] - place[key]);
      this.refresh(); // until the view has come to rest
    }
    const trails = settings.get("trails") && !still.matches ? this.trails : new Map();
    const look = { ...this.look, width: this.width, height: this.height };
    drawScene(this.ctx, scene, this.place, look, this.crew(frame), trails, this.tags);
  }

  drawPicture() {
    const { ctx, picture, width, height } = this;
    this.drawNothing();
    if (!picture) return;
    const scale = Math.min(width / picture.naturalWidth, height / picture.naturalHeight);
    const [w, h] = [picture.naturalWidth * scale, picture.naturalHeight * scale];
    ctx.imageSmoothingQuality = "high";
    ctx.imageSmoothingEnabled = scale < 2; // coarse grids stay sharp
    const [x, y] = [(width - w) / 2, (height - h) / 2];
    ctx.drawImage(picture, x, y, w, h);
    if (!this.look.dark) return;
    ctx.fillStyle = DUSK; // the run paints its pictures for daylight
    ctx.fillRect(x, y, w, h);
  }

  drawNothing() {
    this.ctx.fillStyle = this.look.paper;
    this.ctx.fillRect(0, 0, this.width, this.height);
  }

  // Frames drawn in a second, of late.
  fps() {
    const recent = this.times.filter((time) => performance.now() - time < 2000);
    return recent.length < 2 ? 0 : (1000 * (recent.length - 1)) / (recent.at(-1) - recent[0]);
  }

  // What is on the screen, in words; null where it is not a scene.
  describe() {
    const scene = this.onScreen?.codec === "state" ? this.onScreen.payload : null;
    return scene && scene.shapes.flatMap((shape) => {
      if (shape.kind === "text") return [`${shape.id}: ${shape.text}`];
      return shape.kind === "circle" ? [`${shape.id} at ${shape.x.toFixed(2)}, ${shape.y.toFixed(2)}`] : [];
    });
  }
}
