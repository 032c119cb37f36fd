// Greedy decoding with a compiled package: the graph `encode` runs once, and the graph `step` runs once per token.
// `specc.json` describes the graphs: loop-invariant inputs, decode states, start and stop tokens, and the vocabulary.

export class UnknownCharacterError extends Error {}

// Fetch a file from the directory of the page. Throw an error with instructions if the file is missing.
export async function fetchFile(file) {
  const response = await fetch(file);
  if (!response.ok) throw new Error(`${file} is missing: run make browser`);
  return response;
}

export class Generator {
  static async open(ort, directory, options) {
    const index = await (await fetchFile(`${directory}/specc.json`)).json();
    const createSession = (role) => ort.InferenceSession.create(`${directory}/${index.graphs[role]}`, options);
    return new Generator(ort, index.metadata.generation, await createSession("encode"), await createSession("step"));
  }

  constructor(ort, metadata, encode, step) {
    Object.assign(this, { ort, metadata, encode, step });
    this.source = metadata.preprocessing.inputs.source;
    this.tokenIds = new Map(this.source.vocab.map((character, id) => [character, id]));
  }

  // Return the token ids of a text, followed by the end token. Throw an error for characters that are not in the vocabulary.
  tokenize(text) {
    const characters = [...text.normalize("NFC")];
    const unknown = [...new Set(characters.filter((character) => !this.tokenIds.has(character)))];
    if (unknown.length)
      throw new UnknownCharacterError(`Not in the vocabulary of the model: ${unknown.map((c) => `“${c}”`).join(", ")}`);
    return [...characters.map((character) => this.tokenIds.get(character)), this.source.end];
  }

  // Yield each generated token with the outputs of its step, until the stop token or `maxTokens`, or until
  // `isCanceled()` returns true.
  async *generate(text, maxTokens, isCanceled = () => false) {
    const { ort, metadata } = this;
    const { sequence_input: sequenceInput, logits_output: logitsOutput, settings } = metadata.generate_section;
    const idTensor = (ids) => new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
    const paddingMask = (length) => new ort.Tensor("bool", new Uint8Array(length).fill(1), [1, length]);
    const ids = this.tokenize(text);
    const inputs = { source: idTensor(ids), source_keep: paddingMask(ids.length) };
    const loopInvariant = { ...inputs, ...(await this.encode.run(selectInputs(this.encode, inputs))) };
    let states = Object.fromEntries(
      metadata.states.map((state) => [state.name, loopInvariant[state.initial_output] ?? this.createEmptyState(state)]),
    );
    let token = settings.start;
    for (let past = 0; past < maxTokens && !isCanceled(); past += 1) {
      const feeds = { ...loopInvariant, ...states, [sequenceInput]: idTensor([token]) };
      for (const name of metadata.full_inputs) feeds[name] = paddingMask(past + 1);
      const outputs = await this.step.run(selectInputs(this.step, feeds));
      token = argmax(outputs[logitsOutput].data);
      states = Object.fromEntries(metadata.states.map((state) => [state.name, outputs[state.next_output]]));
      const isStop = token === settings.stop;
      yield { character: this.source.vocab[token], isStop, outputs };
      if (isStop) return;
    }
  }

  // Return a state without past positions: the batch size is 1, and the time axis has length 0.
  createEmptyState(state) {
    const { shape } = this.step.inputMetadata.find((input) => input.name === state.name);
    const dims = shape.map((dim, axis) => (typeof dim === "number" ? dim : axis === state.time_axis ? 0 : 1));
    return new this.ort.Tensor("float32", new Float32Array(dims.reduce((a, b) => a * b, 1)), dims);
  }
}

const selectInputs = (session, tensors) => Object.fromEntries(session.inputNames.map((name) => [name, tensors[name]]));

const argmax = (values) => values.reduce((best, value, index) => (value > values[best] ? index : best), 0);

// Return the mean over heads of attention weights `[1, heads, 1, src]`, or the weights `[1, 1, src]` of a single head.
export function averageHeads(weights) {
  const length = weights.dims.at(-1);
  const heads = weights.data.length / length;
  return Array.from({ length }, (_, key) => {
    let sum = 0;
    for (let head = 0; head < heads; head += 1) sum += weights.data[head * length + key];
    return sum / heads;
  });
}
