// What is drawn, as the model reads pictures: 8 × 8 values from -1 to 1, light strokes on a dark ground.

export const SIDE = 8;
const INSIDE = 0.04; // how much of the ground is left around the strokes

// Where something is drawn: [left, top, right, bottom] in pixels, or null.
function bounds({ width, height, data }) {
  let box = null;
  for (let y = 0; y < height; y += 1)
    for (let x = 0; x < width; x += 1)
      if (data[4 * (y * width + x)] > 40)
        box = box ? [Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y)] : [x, y, x, y];
  return box;
}

// Shares of ink from 0 to 1 in 8 × 8 squares, the strokes as high as the picture and in its middle, as in training; null
// of an empty paper.
export function ink(image) {
  const box = bounds(image);
  if (!box) return null;
  const [left, top, right, bottom] = box;
  const side = Math.max(right - left, bottom - top, 1) * (1 + 2 * INSIDE);
  const start = [(left + right - side) / 2, (top + bottom - side) / 2];
  const fine = 8; // samples a side of a square
  const made = new Float32Array(SIDE * SIDE);
  for (let row = 0; row < SIDE * fine; row += 1)
    for (let column = 0; column < SIDE * fine; column += 1) {
      const x = Math.round(start[0] + ((column + 0.5) * side) / (SIDE * fine));
      const y = Math.round(start[1] + ((row + 0.5) * side) / (SIDE * fine));
      const inside = x >= 0 && y >= 0 && x < image.width && y < image.height;
      const value = inside ? image.data[4 * (y * image.width + x)] / 255 : 0;
      made[Math.floor(row / fine) * SIDE + Math.floor(column / fine)] += value / (fine * fine);
    }
  return made;
}

// As the spec's `reading` says: scale to 0..1, mean 0.5, deviation 0.5.
export const pixels = (shares) => Float32Array.from(shares, (share) => (share - 0.5) / 0.5);

export function softmax(logits) {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (logit) => Math.exp(logit - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}
