import { pieces } from '../../src/chat/visible'

/** Elements are made by hand: text is always text, and nothing that an agent wrote is ever read as markup. */

type Child = Node | string | undefined | false
type Props = Readonly<Record<string, string | number | boolean | undefined | ((event: never) => void)>>

/** An element; `on…` props are listeners, `class` and all others attributes (true is an empty one, false and undefined none). */
export function el<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: readonly Child[]): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === 'function') made.addEventListener(name.slice(2), value as unknown as EventListener)
    else if (value === true) made.setAttribute(name, '')
    else if (value !== undefined && value !== false) made.setAttribute(name, String(value))
  }
  made.append(...children.filter((child): child is Node | string => child !== undefined && child !== false))
  return made
}

/** One of the editor's icons, which says nothing to a screen reader. */
export function icon(name: string, more = ''): HTMLElement {
  return el('span', { class: `codicon codicon-${name} ${more}`.trim(), 'aria-hidden': 'true' })
}

/** A button that is only an icon. */
export function iconButton(name: string, label: string, press: () => void, more = ''): HTMLButtonElement {
  return el('button', { class: `icon-button ${more}`.trim(), type: 'button', title: label, 'aria-label': label, onclick: press }, icon(name))
}

/** Text that the user decides by: each character that would mislead the eye is spelled out. */
export function withVisibleCharacters(text: string, kind: 'command' | 'code' = 'code'): (Node | string)[] {
  return pieces(text, kind).map((piece) => (typeof piece === 'string' ? piece : el('mark', { class: 'spelled', title: piece.why }, piece.shown)))
}
