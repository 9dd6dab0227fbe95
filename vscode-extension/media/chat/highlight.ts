import { common, createLowlight } from 'lowlight'
import { el } from './dom'

const lowlight = createLowlight(common)
const LONGEST = 60_000

interface Piece {
  readonly type: string
  readonly value?: string
  readonly properties?: { readonly className?: unknown }
  readonly children?: readonly Piece[]
}

/** Highlighted code, if its language is known and it is not too long. */
export function highlighted(text: string, language: string): (Node | string)[] {
  if (!language || text.length > LONGEST || !lowlight.registered(language)) return [text]
  return pieces(lowlight.highlight(language, text).children)
}

function pieces(nodes: readonly Piece[]): (Node | string)[] {
  return nodes.map((node) => {
    if (node.type !== 'element') return node.value ?? ''
    const names = Array.isArray(node.properties?.className) ? node.properties.className.join(' ') : ''
    return el('span', { class: names }, ...pieces(node.children ?? []))
  })
}
