// Where the names of agents stand in a drawing: beside their agent, on nobody else, and not jumping about.

const APART = 7; // pixels between an agent's ring and its name
const HEIGHT = 20;
// Directions in which a name may stand, the best first; y downwards, as on the canvas.
const SIDES = [[0, 1], [0, -1], [1, 0], [-1, 0], [0.75, 0.8], [-0.75, 0.8], [0.75, -0.8], [-0.75, -0.8]];
const FAR = [0, 16, 34]; // pixels by which it moves away where nothing nearer is free
const KEEP = 30; // how much better another place has to be before a name leaves the one that it has

export class Tags {
  constructor() {
    this.places = new Map(); // name → index of the place that it has
  }

  // Centres of names, as [x, y]. `wanted`: [{name, x, y, r, width}], r the radius that is to be left free;
  // `taken`: circles that are to be seen, [{x, y, r, of, weight}], `of` the agent whose own it is; `look`: {width, height}.
  arrange(wanted, taken, look) {
    const boxes = [];
    const found = new Map();
    for (const tag of wanted) {
      const places = FAR.flatMap((far) => SIDES.map((side) => centre(tag, side, far, look)));
      const costs = places.map(([x, y, cut], i) => {
        const box = { left: x - tag.width / 2, right: x + tag.width / 2, top: y - HEIGHT / 2, bottom: y + HEIGHT / 2 };
        const circles = taken.reduce((sum, circle) => sum + circle.weight * covered(box, circle), 0);
        return i * 2 + cut * 3 + circles + boxes.reduce((sum, other) => sum + shared(box, other), 0);
      });
      let best = costs.indexOf(Math.min(...costs));
      const kept = this.places.get(tag.name);
      if (kept !== undefined && costs[kept] <= costs[best] + KEEP) best = kept;
      this.places.set(tag.name, best);
      const [x, y] = places[best];
      boxes.push({ left: x - tag.width / 2, right: x + tag.width / 2, top: y - HEIGHT / 2, bottom: y + HEIGHT / 2 });
      found.set(tag.name, [x, y]);
    }
    return found;
  }
}

// Centre of a name on one side of its agent, within the canvas, and by how much it had to be moved for that.
function centre({ x, y, r, width }, [dx, dy], far, look) {
  const reach = r + APART + far;
  const [atX, atY] = [x + dx * (reach + (dx && width / 2)), y + dy * (reach + (dx ? 0 : HEIGHT / 2))];
  const inX = Math.min(Math.max(atX, width / 2 + 4), look.width - width / 2 - 4);
  const inY = Math.min(Math.max(atY, HEIGHT / 2 + 4), look.height - HEIGHT / 2 - 4);
  return [inX, inY, Math.abs(inX - atX) + Math.abs(inY - atY)];
}

// How much of a circle a box covers: 0, or pixels by which it reaches into it, squared, and a fixed sum for touching it.
function covered(box, { x, y, r }) {
  const dx = x - Math.min(Math.max(x, box.left), box.right);
  const dy = y - Math.min(Math.max(y, box.top), box.bottom);
  const into = r + 2 - Math.hypot(dx, dy);
  return into > 0 ? 100 + into * into : 0;
}

function shared(a, b) {
  const [w, h] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
  return w > 0 && h > 0 ? 100 + w * h : 0;
}
