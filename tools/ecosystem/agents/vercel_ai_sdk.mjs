// A tool loop of the Vercel AI SDK; run from the folder that has its node_modules.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.NODE_HOME + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, stepCountIs, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { z } = await load("zod");

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL });
const { text } = await generateText({
  model: openai.chat("gpt-4o-mini"),
  prompt: process.argv[2],
  stopWhen: stepCountIs(5),
  tools: {
    get_weather: tool({
      description: "Return the weather in a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => `18 degrees in ${city}`,
    }),
  },
});
console.log(text);
