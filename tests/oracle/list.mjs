// A packed file as another reader of GGUF sees it: every matrix of its packing lists is an ordinary I8 tensor, as large as
// the description of the layout (sinkless.h, skl_layout) says, and inside the file.
//
//     node tests/oracle/list.mjs ENGINE FILE...      ENGINE is the folder of install.sh
import {statSync} from "node:fs";
import {createRequire} from "node:module";
import {resolve} from "node:path";
import {pathToFileURL} from "node:url";

const I8 = 24;
const [engine, ...files] = process.argv.slice(2);
const entry = createRequire(pathToFileURL(resolve(engine, "package.json"))).resolve("node-llama-cpp");
const {readGgufFileInfo} = await import(pathToFileURL(entry));
let passed = 0;
let failed = 0;

function check(good, what) {
    if (good) passed++;
    else {
        failed++;
        console.log(`failed: ${what}`);
    }
}

// Dimensions of a matrix: bytes of a tile of 16 rows - codes, scales and minima, up to a multiple of 64 - and tiles.
function packedShape(format, columns, rows, group) {
    const bits = format & 255, lists = format >> 8 & 1 ? 2 : 1, width = format >> 9 & 1 ? 4 : 2;
    const tile = columns * 16 * bits / 8 + columns / group * 16 * width * lists;
    return [Math.ceil(tile / 64) * 64, Math.ceil(rows / 16)];
}

for (const file of files) {
    const {metadata, tensorInfo} = await readGgufFileInfo(file);
    const packing = metadata.packing;
    check(packing?.version === 1 && packing.names.length > 0, `${file}: no packing lists`);
    for (let i = 0; i < (packing?.names.length ?? 0); i++) {
        const name = packing.names[i];
        const layout = [packing.formats, packing.columns, packing.rows, packing.groups].map((list) => Number(list[i]));
        const shape = packedShape(...layout);
        const tensor = tensorInfo.find((t) => t.name === name);
        check(tensor?.ggmlType === I8, `${file}: ${name} is no I8 tensor`);
        check(String(tensor?.dimensions) === String(shape), `${file}: ${name} is ${tensor?.dimensions}, not ${shape}`);
        check(Number(tensor?.fileOffset) + shape[0] * shape[1] <= statSync(file).size, `${file}: ${name} ends beyond the file`);
    }
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
