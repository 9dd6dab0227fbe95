import type { WebviewMessage } from '../../src/chat/messages'

interface Api {
  postMessage(message: WebviewMessage): void
  getState(): unknown
  setState(state: unknown): void
}

declare function acquireVsCodeApi(): Api

/** The connection to the extension host. */
export const host = acquireVsCodeApi()
