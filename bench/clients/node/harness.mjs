// What the suites have in common: where things are, tests, and questions to the world.
import assert from 'node:assert/strict';

export const replicaA = process.env.HEADGATE_A;
export const replicaB = process.env.HEADGATE_B;
const world = process.env.HEADGATE_WORLD;

const tests = [];

export function test(name, run) {
  tests.push({ name, run });
}

export async function runAll() {
  let passed = 0;
  let failed = 0;
  for (const { name, run } of tests) {
    try {
      await Promise.race([run(), late()]);
      passed++;
      console.log('ok   ' + name);
    } catch (error) {
      failed++;
      console.log(`FAIL ${name}: ${error.stack}`);
    }
    await faults();
  }
  console.log(`${passed} passed, ${failed} failed`);
  process.exit(failed > 0 ? 1 : 0);
}

// patience is for one test: a library that was told to wait for long must not hold up the others.
const patience = 30_000;

function late() {
  return new Promise((_, reject) => setTimeout(() => reject(new Error(`not over within ${patience} ms`)), patience).unref());
}

let labels = 0;

// label is an X-Request-Id nobody has used.
export function label() {
  return `node-${process.pid}-${++labels}`;
}

// key makes an API key with these flags of `headgate keys create`.
export function key(...flags) {
  return read(fetch(world + '/key', { method: 'POST', body: JSON.stringify(flags) }));
}

// faults befall the next requests at both engines: {kind, after, times, delay}; none ends them.
export function faults(...list) {
  return read(fetch(world + '/faults', { method: 'POST', body: JSON.stringify(list) }));
}

async function read(answer) {
  answer = await answer;
  const text = await answer.text();
  assert.equal(answer.status, 200, text);
  return text;
}

// request waits until n usage lines with that id are written and the engines are done with it; n is 0 where it is not
// known: until one says 200.
export async function request(id, n) {
  const asked = JSON.parse(await read(fetch(`${world}/request?id=${encodeURIComponent(id)}&lines=${n}`)));
  if (n > 0) assert.equal(asked.lines.length, n, JSON.stringify(asked));
  return asked;
}

// counted wants the client, the engine and the usage line to agree on the tokens of the one request.
export async function counted(id, prompt, completion) {
  const { lines, engine } = await request(id, 1);
  assert.ok(prompt > 0 && completion > 0, `${prompt} and ${completion} tokens`);
  assert.deepEqual(engine.map((e) => [e.prompt, e.output]), [[prompt, completion]]);
  const { prompt_tokens, completion_tokens, usage_source, outcome } = lines[0];
  assert.deepEqual({ prompt_tokens, completion_tokens, usage_source, outcome }, { prompt_tokens: prompt, completion_tokens: completion, usage_source: 'backend', outcome: 'ok' });
}

// statuses wants these answers to the requests with that id: what the library did not show, and retried.
export async function statuses(id, ...all) {
  const { lines } = await request(id, all.length);
  assert.deepEqual(lines.map((l) => l.status), all);
}

// retried wants the requests with that id to be refused with this status, until the last one was served.
export async function retried(id, refusal) {
  const found = (await request(id, 0)).lines.map((l) => l.status);
  assert.ok(found.length > 1, `${found}`);
  assert.deepEqual(found, [...found.slice(1).fill(refusal), 200]);
}

// aborted wants the engine to have seen the client leave soon after it did.
export async function aborted(id, left) {
  const { lines, engine } = await request(id, 1);
  assert.deepEqual([lines[0].outcome, engine.map((e) => e.outcome)], ['client_gone', ['abort']]);
  assert.ok(engine[0].abort_ms - left < 2000, `the engine saw it ${engine[0].abort_ms - left} ms later`);
}

// thrown returns the error of that class; anything else fails the test.
export async function thrown(promise, kind) {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof kind, `want ${kind.name}, got ${error.stack}`);
    return error;
  }
  assert.fail(`nothing was thrown, want ${kind.name}`);
}

// collect reads a stream to its end.
export async function collect(stream) {
  const all = [];
  for await (const item of stream) all.push(item);
  return all;
}

// The tool every suite has; its call is the engine's invention.
export const schema = { type: 'object', properties: { city: { type: 'string' }, unit: { type: 'string', enum: ['C', 'F'] } }, required: ['city', 'unit'] };
export const call = { city: 'some city', unit: 'C' };
export const nobody = 'sk-acme-00000000000000000000000000000000';
