/** Libraries that most conversations do not need. Each is a script of its own beside this one. */
import type * as Katex from './katex'
import type * as Mermaid from './mermaid'

// Known only while the page's script starts.
const { currentScript } = document
const here = currentScript instanceof HTMLScriptElement ? currentScript.src : ''

const address = (name: string): string => new URL(`drawing/${name}`, here).href
const once = <T>(load: () => Promise<T>): (() => Promise<T>) => {
  let made: Promise<T> | undefined
  return () => (made ??= load())
}

export const mermaid = once(() => import(address('mermaid.js')) as Promise<typeof Mermaid>)

export const katex = once(async () => {
  const style = document.createElement('link')
  style.rel = 'stylesheet'
  style.href = address('katex.css')
  document.head.append(style)
  return import(address('katex.js')) as Promise<typeof Katex>
})
