// What Node and the browser have in common: one model with all its inputs, through onnxruntime-web.
// `read` gives the bytes of a file, or null where there is none; inputs and results are JSON by name:
// {"type": "int64", "dims": [2, 3], "data": [1, 2, …]}; what is no number is a text.

const ARRAYS = {
  int64: (data) => BigInt64Array.from(data, BigInt),
  int32: (data) => Int32Array.from(data),
  bool: (data) => Uint8Array.from(data),
  float32: (data) => Float32Array.from(data),
};

const finite = (number) => (Number.isFinite(number) ? number : String(number));

export async function results(ort, provider, model, inputs) {
  const options = { executionProviders: [provider], logSeverityLevel: 4 };
  const session = await ort.InferenceSession.create(model, options);
  const every = [];
  try {
    for (const told of inputs) {
      const feeds = {};
      for (const name of session.inputNames) {
        const { type, dims, data } = told[name];
        feeds[name] = new ort.Tensor(type, ARRAYS[type](data), dims);
      }
      const made = {};
      for (const [name, tensor] of Object.entries(await session.run(feeds))) {
        const data = Array.from(await tensor.getData(), Number).map(finite);
        made[name] = { type: tensor.type, dims: tensor.dims, data };
      }
      every.push(made);
    }
  } finally {
    await session.release();
  }
  return every;
}
