import type { QueuedMessage } from '../../src/chat/messages'
import { el, icon, iconButton } from './dom'
import { host } from './host'
import { chip } from './items'

/** The messages that wait for the running one, above the composer: each can be edited, removed or sent at once until it starts. */
export class Queue {
  readonly element = el('section', { class: 'strip queue', 'aria-label': 'Messages that wait', hidden: true })
  private shape = ''
  private known = new Set<string>()

  constructor(
    private readonly edit: (message: QueuedMessage) => void,
    private readonly focus: () => void,
    private readonly say: (words: string) => void,
  ) {}

  set(messages: readonly QueuedMessage[]): void {
    const shape = JSON.stringify(messages)
    // New buttons would lose the focus.
    if (shape === this.shape) return
    this.shape = shape
    const ids = new Set(messages.map((each) => each.id))
    if (messages.some((each) => !this.known.has(each.id))) this.say(`${count(messages.length)}. Shift Tab leads to ${messages.length === 1 ? 'it' : 'them'}.`)
    this.known = ids
    const focused = this.element.contains(document.activeElement) ? (document.activeElement?.getAttribute('data-key') ?? '') : undefined
    this.element.hidden = messages.length === 0
    this.element.replaceChildren(
      el('div', { class: 'strip-bar' }, icon('history'), el('span', { class: 'title' }, count(messages.length))),
      el('ul', {}, ...messages.map((each, at) => this.row(each, at))),
    )
    if (focused === undefined) return
    const again = [...this.element.querySelectorAll<HTMLElement>('[data-key]')].find((each) => each.dataset.key === focused)
    if (again) again.focus()
    else this.focus()
  }

  private row(message: QueuedMessage, at: number): HTMLElement {
    const { id, sending } = message
    const which = `message ${at + 1}`
    const keyed = (button: HTMLButtonElement, key: string): HTMLButtonElement => {
      button.dataset.key = `${id} ${key}`
      return button
    }
    return el(
      'li',
      { class: sending ? 'queued sending' : 'queued', 'data-queued': id },
      el('div', { class: 'words' }, el('span', { class: 'text', title: message.text }, message.text), ...(message.attachments.length > 0 ? [el('span', { class: 'chips' }, ...message.attachments.map((each) => chip(each)))] : []), sending && el('span', { class: 'about' }, 'goes with the next step')),
      el(
        'span',
        { class: 'row-buttons' },
        !sending && keyed(iconButton('arrow-up', `Send ${which} now: Cantrip reads it before its next step`, () => { host.postMessage({ type: 'sendQueuedNow', id }) }), 'now'),
        keyed(iconButton('edit', `Edit ${which}`, () => { this.edit(message) }), 'edit'),
        keyed(iconButton('close', `Remove ${which}`, () => { host.postMessage({ type: 'removeQueued', id }) }), 'remove'),
      ),
    )
  }
}

function count(messages: number): string {
  return messages === 1 ? '1 message waits' : `${messages} messages wait`
}
