// The promptfoo contestant of `trials.py`: node _trials_promptfoo.mjs PACKAGE N MS
// Imports it and does a few trials first, then times N through its Node interface, as JSON.

import { pathToFileURL } from 'node:url';
import { join } from 'node:path';

const [home, count, milliseconds] = process.argv.slice(2);
const entry = join(home, 'node_modules', 'promptfoo', 'dist', 'src', 'index.js');
const { default: promptfoo } = await import(pathToFileURL(entry).href);

const wait = Number(milliseconds);
const provider = async () => {
  if (wait) await new Promise((wake) => setTimeout(wake, wait));
  return { output: 'The answer is 42, as everybody knows.' };
};

async function work(n) {
  const suite = {
    prompts: ['What do you get if you multiply six by nine?'],
    providers: [provider],
    tests: [{ assert: [{ type: 'contains', value: '42' }] }],
    writeLatestResults: true,
  };
  const options = { maxConcurrency: 100, cache: false, repeat: n, showProgressBar: false };
  const evaluation = await promptfoo.evaluate(suite, options);
  const summary = await evaluation.toEvaluateSummary();
  return summary.stats.successes;
}

await work(10);
const began = process.hrtime.bigint();
const before = process.cpuUsage();
const passed = await work(Number(count));
const used = process.cpuUsage(before);
const told = {
  wall: Number(process.hrtime.bigint() - began) / 1e9,
  cpu: (used.user + used.system) / 1e6,
  passed,
  peak_mb: process.resourceUsage().maxRSS / 1024,
  marks: {},
};
process.stdout.write('\n' + JSON.stringify(told) + '\n', () => process.exit(0));
