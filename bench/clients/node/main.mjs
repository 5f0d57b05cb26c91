// Runs the client libraries of Node against a fleet; see the folder above.
import { runAll } from './harness.mjs';
import './openai.mjs';
import './anthropic.mjs';
import './ai.mjs';

await runAll();
