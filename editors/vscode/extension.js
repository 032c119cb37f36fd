// Starts the language server `specc lsp` for .specc files and YAML files. The server itself decides
// which YAML files are specs.
"use strict";

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function start() {
  const command = vscode.workspace.getConfiguration("specc").get("command") || "specc";
  const server = { command, args: ["lsp"] };
  const documentSelector = [
    { language: "specc" },
    { language: "yaml", scheme: "file" },
  ];
  client = new LanguageClient("specc", "specc", server, { documentSelector });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    // syntax highlighting and the JSON Schema work without a server
    vscode.window.showWarningMessage(
      `\`${command} lsp\` did not start (${error.message}). Install specc with the extra lsp, ` +
        "or set the path of the command in the setting specc.command."
    );
  }
}

async function stop() {
  const running = client;
  client = undefined;
  if (running) {
    await running.stop();
  }
}

async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("specc.restart", async () => {
      await stop();
      await start();
    })
  );
  await start();
}

module.exports = { activate, deactivate: stop };
