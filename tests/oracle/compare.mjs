// build/eval against llama.cpp, for models that both know: the golden llama and qwen3 models, and those given. What is
// compared is probabilities, because the engine gives no logits. Golden models have no vocabulary, and llama.cpp runs
// none without, so they get one that means nothing.
//
//     node tests/oracle/compare.mjs ENGINE EVAL [MODEL...]      ENGINE is the folder of install.sh
import {execFileSync} from "node:child_process";
import {mkdtempSync, readFileSync, rmSync, writeFileSync} from "node:fs";
import {createRequire} from "node:module";
import {tmpdir} from "node:os";
import {basename, join, resolve} from "node:path";
import {pathToFileURL} from "node:url";

// Both keep keys and values in f16, but sum in another order.
const TOLERANCE = 0.004;
const TOKENS = 32;

const [engine, evaluator, ...models] = process.argv.slice(2);
const entry = createRequire(pathToFileURL(resolve(engine, "package.json"))).resolve("node-llama-cpp");
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(entry));
const folder = mkdtempSync(join(tmpdir(), "oracle-"));
let passed = 0;
let failed = 0;

function check(good, what) {
    if (good) passed++;
    else {
        failed++;
        console.log(`failed: ${what}`);
    }
}

const SIZES = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
const STRING = 8, ARRAY = 9;

// Where things of a GGUF file begin and end: keys [name, begin, end], the tensor list, the data.
function layout(file) {
    let at = 24;
    const u32 = () => file.readUInt32LE((at += 4) - 4);
    const u64 = () => Number(file.readBigUInt64LE((at += 8) - 8));
    const string = () => {
        const n = u64();
        return file.toString("utf8", at, at += n);
    };
    const skip = (type) => {
        if (type === STRING) string();
        else if (type === ARRAY) {
            const element = u32();
            for (let n = u64(); n > 0; n--) skip(element);
        } else at += SIZES[type];
    };
    const keys = [];
    for (let n = Number(file.readBigUInt64LE(16)); n > 0; n--) {
        const begin = at;
        const name = string();
        skip(u32());
        keys.push([name, begin, at]);
    }
    const tensors = at;
    for (let n = Number(file.readBigUInt64LE(8)); n > 0; n--) {
        string();
        const dims = u32();
        at += 8 * dims + 12;
    }
    return {keys, tensors, end: at, data: Math.ceil(at / 32) * 32};
}

const text = (s) => {
    const bytes = Buffer.from(s);
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(bytes.length));
    return Buffer.concat([length, bytes]);
};
const word = (n) => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(n);
    return bytes;
};
const array = (name, type, items) => {
    const count = Buffer.alloc(8);
    count.writeBigUInt64LE(BigInt(items.length));
    return Buffer.concat([text(name), word(ARRAY), word(type), count, ...items]);
};

// The same model with a vocabulary of n tokens.
function withVocabulary(path, n) {
    const file = readFileSync(path);
    const {keys, tensors, end, data} = layout(file);
    const kept = keys.filter(([name]) => !name.startsWith("tokenizer."))
        .map(([, begin, to]) => file.subarray(begin, to));
    const tokens = [...Array(n).keys()];
    const added = [
        Buffer.concat([text("tokenizer.ggml.model"), word(STRING), text("gpt2")]),
        array("tokenizer.ggml.tokens", STRING, tokens.map((i) => text(`t${i}`))),
        array("tokenizer.ggml.token_type", 5, tokens.map(() => word(1))),
        array("tokenizer.ggml.merges", STRING, [text("t 0")])
    ];
    const head = Buffer.from(file.subarray(0, 24));
    head.writeBigUInt64LE(BigInt(kept.length + added.length), 16);
    const start = Buffer.concat([head, ...kept, ...added, file.subarray(tensors, end)]);
    const out = join(folder, "model.gguf");
    writeFileSync(out, Buffer.concat([start, Buffer.alloc((32 - start.length % 32) % 32), file.subarray(data)]));
    return out;
}

// Probabilities after each token, as our logits have them: [tokens][vocabulary].
function ours(path, ids) {
    const idsPath = join(folder, "tokens.i32");
    const logitsPath = join(folder, "logits.f32");
    writeFileSync(idsPath, Buffer.from(new Int32Array(ids).buffer));
    execFileSync(evaluator, ["-m", path, "--ids", idsPath, "--logits", logitsPath, "--act", "f32", "--kv", "f16"]);
    const bytes = readFileSync(logitsPath);
    const logits = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
    const n = logits.length / ids.length;
    return ids.map((_, t) => {
        const row = logits.subarray(t * n, (t + 1) * n);
        const largest = row.reduce((a, b) => Math.max(a, b));
        const odds = Array.from(row, (x) => Math.exp(x - largest));
        const sum = odds.reduce((a, b) => a + b);
        return odds.map((x) => x / sum);
    });
}

async function theirs(llama, path, ids) {
    const model = await llama.loadModel({modelPath: path});
    const context = await model.createContext({contextSize: 64, batchSize: 64});
    const options = {temperature: 1, topK: 0, topP: 1, minP: 0};
    const input = ids.map((id) => [id, {generateNext: {probabilities: true, options}}]);
    const output = await context.getSequence().controlledEvaluate(input);
    const result = output.map((step) => step.next.probabilities);
    await model.dispose();
    return result;
}

async function compare(llama, name, path, theirPath, ids) {
    const a = ours(path, ids);
    const b = await theirs(llama, theirPath, ids);
    let largest = 0;
    ids.forEach((_, t) => {
        let difference = 0;
        a[t].forEach((p, id) => difference = Math.max(difference, Math.abs(p - (b[t].get(id) ?? 0))));
        largest = Math.max(largest, difference);
        check(difference <= TOLERANCE, `${name}, token ${t}: a probability differs by ${difference}`);
    });
    console.log(`${name}: ${ids.length} tokens, largest difference of a probability ${largest.toExponential(2)}`);
}

const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
for (const name of ["llama", "qwen3"]) {
    const path = `tests/golden/${name}/model.gguf`;
    const bytes = readFileSync(`tests/golden/${name}/tokens.i32`);
    const ids = Array.from({length: Math.min(TOKENS, bytes.length / 4)}, (_, i) => bytes.readInt32LE(4 * i));
    const vocabulary = JSON.parse(readFileSync(`tests/golden/${name}/case.json`)).numbers.n_vocab;
    await compare(llama, `golden ${name}`, path, withVocabulary(path, vocabulary), ids);
}
for (const path of models) {
    const ids = [1, 403, 407, 261, 378];  // "Once upon a time" for stories260k, a sequence for any other
    await compare(llama, basename(path), path, path, ids);
}
rmSync(folder, {recursive: true});
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
