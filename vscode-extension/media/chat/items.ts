import type { Attachment, EndItem, ErrorItem, FoldItem, FormItem, Item, NoticeItem, ToolItem, UserItem, WordsItem } from '../../src/chat/items'
import type { Versions } from '../../src/chat/versions'
import { copyButton, el, icon, iconButton } from './dom'
import { FormView } from './form'
import { host } from './host'
import { MarkdownView } from './markdown'
import { picture, ToolView } from './tool'

/** The view of an item. `set` shows its current state, `text` and `output` append, `finish` ends the text. */
export interface ItemView {
  readonly element: HTMLElement
  set(item: Item): void
  text(text: string): void
  output(text: string): void
  finish(): void
}

export function viewOf(item: Item, streaming: boolean): ItemView {
  switch (item.type) {
    case 'agent':
      return new WordsView(item, streaming)
    case 'thought':
      return new ThoughtView(item, streaming)
    case 'tool': {
      const view = new ToolView(item)
      return plain(view.element, (now) => { view.set(now as ToolItem) }, (text) => { view.output(text) })
    }
    case 'form': {
      const view = new FormView(item)
      return plain(view.element, (now) => { view.set(now as FormItem) })
    }
    case 'user':
      return rebuildOnUpdate(item, (now) => user(now as UserItem))
    case 'notice':
      return rebuildOnUpdate(item, (now) => notice(now as NoticeItem))
    case 'fold':
      return rebuildOnUpdate(item, (now) => fold(now as FoldItem))
    case 'error':
      return rebuildOnUpdate(item, (now) => error(now as ErrorItem))
    case 'end':
      return rebuildOnUpdate(item, (now) => end(now as EndItem))
  }
}

const nothing = (): void => undefined

function plain(element: HTMLElement, set: (item: Item) => void, output: (text: string) => void = nothing): ItemView {
  return { element, set, text: nothing, output, finish: nothing }
}

function rebuildOnUpdate(item: Item, make: (item: Item) => HTMLElement): ItemView {
  const frame = el('div', { class: `item ${item.type}-item`, role: 'article', 'data-id': item.id }, make(item))
  return plain(frame, (now) => { frame.replaceChildren(make(now)) })
}

class WordsView implements ItemView {
  private readonly kind = 'agent'
  readonly element: HTMLElement
  private words: MarkdownView
  private said: string

  constructor(item: WordsItem, streaming: boolean) {
    this.words = new MarkdownView(item.text, streaming)
    this.said = item.text
    this.element = el('div', { class: 'item agent-item', role: 'article', 'aria-label': 'Cantrip', 'data-id': item.id, hidden: item.text === '' }, this.words.element)
  }

  output = nothing

  /** The text of an interrupted attempt is removed, and a plan that a question shows. */
  set(item: Item): void {
    if (item.type !== this.kind) return
    this.element.hidden = item.text === ''
    if (item.text === this.said) return
    this.said = item.text
    this.words = new MarkdownView(item.text)
    this.element.replaceChildren(this.words.element)
  }

  text(text: string): void {
    this.said += text
    this.element.hidden = false
    this.words.append(text)
  }

  finish(): void {
    this.words.finish()
  }
}

/** A thought of the agent, collapsed to its first words. */
class ThoughtView implements ItemView {
  private readonly kind = 'thought'
  readonly element: HTMLElement
  private readonly words: MarkdownView
  private readonly label = el('span', { class: 'title' })

  constructor(item: WordsItem, streaming: boolean) {
    this.words = new MarkdownView(item.text, streaming)
    this.label.textContent = streaming ? 'Thinking' : 'Thought'
    this.element = el(
      'div',
      { class: `item thought-item${streaming ? ' live' : ''}`, role: 'article', 'aria-label': 'Thought', 'data-id': item.id },
      el('details', {}, el('summary', {}, icon('chevron-right', 'chevron'), icon('lightbulb', 'kind'), this.label), el('div', { class: 'tool-body' }, this.words.element)),
    )
  }

  output = nothing

  /** The text of an interrupted attempt is removed. */
  set(item: Item): void {
    this.element.hidden = item.type === this.kind && item.text === ''
  }

  text(text: string): void {
    this.words.append(text)
  }

  finish(): void {
    this.label.textContent = 'Thought'
    this.element.classList.remove('live')
    this.words.finish()
  }
}

export const KINDS: Readonly<Record<Attachment['kind'], string>> = {
  file: 'file',
  folder: 'folder',
  selection: 'list-selection',
  symbol: 'symbol-method',
  image: 'file-media',
  link: 'link',
  problems: 'warning',
  terminal: 'terminal',
  changes: 'diff',
}

/** An attachment as a chip, with a button if `remove` is given. */
export function chip(attachment: Attachment, remove?: () => void): HTMLElement {
  const { uri } = attachment
  const name = el('span', { class: 'name' }, attachment.name)
  const label =
    uri === undefined || remove !== undefined
      ? el('span', { class: 'inner' }, icon(KINDS[attachment.kind]), name)
      : el('button', { class: 'inner', type: 'button', onclick: () => { host.postMessage({ type: 'link', href: uri }) } }, icon(KINDS[attachment.kind]), name)
  return el('span', { class: 'chip', title: attachment.detail ?? attachment.name }, label, remove && iconButton('close', `Remove ${attachment.name}`, remove))
}

function user(item: UserItem): HTMLElement {
  const pictures = item.attachments.filter((each) => each.data !== undefined)
  const others = item.attachments.filter((each) => each.data === undefined)
  return el(
    'div',
    { class: 'message' },
    el(
      'div',
      { class: 'said' },
      el('span', { class: 'hidden-words' }, 'You:'),
      el('div', { class: 'words', dir: 'auto' }, item.text),
      others.length > 0 && el('div', { class: 'chips' }, ...others.map((each) => chip(each))),
      pictures.length > 0 && el('div', { class: 'pictures' }, ...pictures.map((each) => picture(each.mime ?? '', each.data ?? ''))),
    ),
    item.steered === true
      ? el('span', { class: 'about' }, 'sent while Cantrip worked')
      : el(
          'span',
          { class: 'message-side' },
          item.versions && versions(item.id, item.versions),
          el(
            'span',
            { class: 'message-buttons when-idle' },
            iconButton('edit', 'Edit and send again', () => { editing.edit(item) }),
            iconButton('discard', 'Restore files to here: as they were before this message', () => { host.postMessage({ type: 'restore', item: item.id }) }),
          ),
        ),
  )
}

/** Buttons to the versions of a message in other sessions: `‹ 2/3 ›`, and one to compare them. */
function versions(item: string, { at, sessions }: Versions): HTMLElement {
  const button = (step: -1 | 1, name: string, label: string): HTMLButtonElement => {
    const to = at + step + 1
    const made = iconButton(name, `${label} version of this message: ${to} of ${sessions.length}`, () => { host.postMessage({ type: 'version', item, step }) })
    made.dataset['step'] = String(step)
    made.disabled = to < 1 || to > sessions.length
    if (made.disabled) made.title = made.ariaLabel = `No ${label.toLowerCase()} version of this message`
    return made
  }
  return el(
    'span',
    { class: 'versions', role: 'group', 'aria-label': `Version ${at + 1} of ${sessions.length} of this message` },
    button(-1, 'chevron-left', 'Earlier'),
    el('span', { class: 'count' }, `${at + 1}/${sessions.length}`),
    button(1, 'chevron-right', 'Later'),
    iconButton('compare-changes', sessions.length > 2 ? 'Compare this version with another one, side by side' : 'Compare both versions side by side', () => { host.postMessage({ type: 'compareVersions', item }) }),
  )
}

/** What the button to edit a message does; the composer sets it. */
export const editing = { edit: (_item: UserItem): void => undefined }

const SIGNS = { info: 'info', warning: 'warning', error: 'error' } as const

function notice(item: NoticeItem): HTMLElement {
  return el('div', { class: `notice ${item.severity}` }, icon(SIGNS[item.severity]), el('div', {}, el('strong', {}, item.title), item.text && el('div', { class: 'detail' }, item.text)))
}

function fold(item: FoldItem): HTMLElement {
  const title = item.status === 'in_progress' ? 'Summarizing earlier messages…' : item.status === 'failed' ? 'Earlier messages could not be summarized' : 'Earlier messages are summarized from here on'
  return el('details', { class: 'fold' }, el('summary', {}, icon('chevron-right', 'chevron'), icon('fold', 'kind'), el('span', { class: 'title' }, title)), el('div', { class: 'tool-body' }, new MarkdownView(item.text).element))
}

const ACTIONS = {
  restart: ['restart', 'Restart Cantrip'],
  retry: ['retry', 'Try Again'],
  signIn: ['signIn', 'Choose a Model…'],
  setUp: ['setUp', 'Set Up Cantrip'],
  newSession: ['new', 'New Session'],
} as const

export function error(item: ErrorItem): HTMLElement {
  const action = item.action === 'none' ? undefined : ACTIONS[item.action]
  // This is not an error: the user must do something.
  const first = item.action === 'setUp' || item.action === 'signIn'
  return el(
    'div',
    { class: first ? 'error first' : 'error', role: 'alert' },
    icon(item.action === 'signIn' ? 'key' : first ? 'tools' : 'error'),
    el(
      'div',
      { class: 'body' },
      el('strong', {}, item.title),
      item.detail && el('div', { class: 'detail' }, item.detail),
      action && el('button', { class: first ? 'primary' : 'secondary', type: 'button', onclick: () => { host.postMessage({ type: action[0] }) } }, action[1]),
      item.incomplete === true && continueButton(item.id),
    ),
  )
}

function continueButton(item: string): HTMLElement {
  return el('button', { class: 'secondary continue when-idle', type: 'button', title: 'Let the answer go on, without a new message', onclick: () => { host.postMessage({ type: 'continue', item }) } }, 'Continue')
}

function end(item: EndItem): HTMLElement {
  const { turn } = item
  return el(
    'div',
    { class: 'end' },
    item.words && el('span', { class: 'words' }, item.words),
    item.incomplete === true && continueButton(item.id),
    item.said && copyButton('Copy this answer', () => { host.postMessage({ type: 'copyAnswer', item: item.id }) }),
    iconButton('refresh', 'Try again: send the message again from before it', () => { host.postMessage({ type: 'tryAgain', item: item.id }) }, 'when-idle'),
    turn !== undefined && iconButton('discard', 'Restore files to here: as they were after this answer', () => { host.postMessage({ type: 'restore', item: item.id }) }, 'when-idle'),
    turn !== undefined && el('button', { class: 'text-button fork', type: 'button', title: 'Continue from here in a new session', onclick: () => { host.postMessage({ type: 'fork', turn }) } }, icon('repo-forked'), el('span', {}, 'Fork from here')),
  )
}
