// Preprocess a drawing as the spec `digits.yaml` does: 8 × 8 values from -1 to 1, with light strokes on a dark background.

export const SIDE = 8;
const MARGIN = 0.04; // margin around the strokes, relative to the size of the strokes
const SAMPLES = 8; // samples per side of a cell

// Return the bounding box of the strokes, [left, top, right, bottom] in pixels, or null for an empty canvas.
function findBoundingBox({ width, height, data }) {
  let box = null;
  for (let y = 0; y < height; y += 1)
    for (let x = 0; x < width; x += 1)
      if (data[4 * (y * width + x)] > 40)
        box = box ? [Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y)] : [x, y, x, y];
  return box;
}

// Crop, center and scale the strokes like the training images, and average them to 8 × 8 gray values from 0 to 1. Return
// null for an empty canvas.
export function downsample(image) {
  const box = findBoundingBox(image);
  if (!box) return null;
  const [left, top, right, bottom] = box;
  const side = Math.max(right - left, bottom - top, 1) * (1 + 2 * MARGIN);
  const origin = [(left + right - side) / 2, (top + bottom - side) / 2];
  const grayValues = new Float32Array(SIDE * SIDE);
  for (let row = 0; row < SIDE * SAMPLES; row += 1)
    for (let column = 0; column < SIDE * SAMPLES; column += 1) {
      const x = Math.round(origin[0] + ((column + 0.5) * side) / (SIDE * SAMPLES));
      const y = Math.round(origin[1] + ((row + 0.5) * side) / (SIDE * SAMPLES));
      const isInside = x >= 0 && y >= 0 && x < image.width && y < image.height;
      const value = isInside ? image.data[4 * (y * image.width + x)] / 255 : 0;
      grayValues[Math.floor(row / SAMPLES) * SIDE + Math.floor(column / SAMPLES)] += value / (SAMPLES * SAMPLES);
    }
  return grayValues;
}

// Normalize with the mean 0.5 and the standard deviation 0.5, like the section `reading` of the spec.
export const normalize = (grayValues) => Float32Array.from(grayValues, (value) => (value - 0.5) / 0.5);

export function softmax(logits) {
  const maximum = Math.max(...logits);
  const exponentials = Array.from(logits, (logit) => Math.exp(logit - maximum));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((value) => value / sum);
}
