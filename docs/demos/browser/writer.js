// A package of specc, driven: `encode` once, then the step for every letter. Everything that it must know stands in
// specc.json: which results of `encode` every step reads, which states go from step to step, where texts begin and end,
// and how letters become numbers.

export class Unreadable extends Error {}

// A file of the page's folder, or an error that says how it comes there.
export async function present(file) {
  const answer = await fetch(file);
  if (!answer.ok) throw new Error(`${file} is not there: run make browser`);
  return answer;
}

export class Writer {
  static async open(ort, folder, options) {
    const index = await (await present(`${folder}/specc.json`)).json();
    const session = (role) => ort.InferenceSession.create(`${folder}/${index.graphs[role]}`, options);
    return new Writer(ort, index.about.generating, await session("encode"), await session("step"));
  }

  constructor(ort, facts, encode, step) {
    Object.assign(this, { ort, facts, encode, step });
    this.vocabulary = facts.reading.inputs.source.vocab;
    this.numbers = new Map(this.vocabulary.map((letter, number) => [letter, number]));
    Object.assign(this, { start: facts.generation.settings.start, stop: facts.generation.settings.stop });
  }

  // The numbers of a text's letters and of its end; `Unreadable` names the letters that the model never saw.
  ids(text) {
    const letters = [...text.normalize("NFC")];
    const strange = [...new Set(letters.filter((letter) => !this.numbers.has(letter)))];
    if (strange.length) throw new Unreadable(`The model has never seen ${strange.map((s) => `“${s}”`).join(", ")}.`);
    return [...letters.map((letter) => this.numbers.get(letter)), this.facts.reading.inputs.source.end];
  }

  // One letter of the answer after the other, each with the step's results; `still` says whether to go on.
  async *write(text, most, still = () => true) {
    const ids = this.ids(text);
    const { ort, facts } = this;
    const whole = (numbers) => new ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), [1, numbers.length]);
    const exist = (count) => new ort.Tensor("bool", new Uint8Array(count).fill(1), [1, count]);
    const given = { source: whole(ids), source_keep: exist(ids.length) };
    const encoded = { ...given, ...(await this.encode.run(chosen(this.encode, given))) };
    let states = Object.fromEntries(facts.states.map((state) => [state.name, encoded[state.initial] ?? this.empty(state)]));
    let token = this.start;
    for (let past = 0; past < most && still(); past += 1) {
      const feeds = { ...encoded, ...states, [facts.generation.growing]: whole([token]) };
      for (const name of facts.whole) feeds[name] = exist(past + 1);
      const results = await this.step.run(chosen(this.step, feeds));
      token = greatest(results[facts.generation.source].data);
      states = Object.fromEntries(facts.states.map((state) => [state.name, results[state.next]]));
      yield { letter: this.vocabulary[token], ended: token === this.stop, results };
      if (token === this.stop) return;
    }
  }

  // A state of no rows: what is open in its shape is the batch, which is 1, and the rows, of which there are none.
  empty(state) {
    const told = this.step.inputMetadata.find((input) => input.name === state.name);
    const dims = told.shape.map((dim, axis) => (typeof dim === "number" ? dim : axis === state.rows ? 0 : 1));
    return new this.ort.Tensor("float32", new Float32Array(dims.reduce((a, b) => a * b, 1)), dims);
  }
}

const chosen = (session, tensors) => Object.fromEntries(session.inputNames.map((name) => [name, tensors[name]]));

const greatest = (numbers) => numbers.reduce((best, number, at) => (number > numbers[best] ? at : best), 0);

// The mean over heads of attention weights `[1, heads, 1, src]`, or `[1, 1, src]` where there are no heads.
export function looked(tensor) {
  const length = tensor.dims.at(-1);
  const heads = tensor.data.length / length;
  return Array.from({ length }, (_, at) => {
    let sum = 0;
    for (let head = 0; head < heads; head += 1) sum += tensor.data[head * length + at];
    return sum / heads;
  });
}
