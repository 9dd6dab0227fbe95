import type { ToolItem, ToolPart } from '../../src/chat/items'
import { change } from './change'
import { el, icon } from './dom'
import { host } from './host'
import { codeBlock, link, MarkdownView } from './markdown'
import { TerminalView } from './terminal'

const ICONS: Readonly<Record<string, string>> = {
  read: 'file',
  edit: 'edit',
  delete: 'trash',
  move: 'move',
  search: 'search',
  execute: 'terminal',
  think: 'lightbulb',
  fetch: 'globe',
  switch_mode: 'arrow-swap',
  other: 'tools',
}
const STATUS: Readonly<Record<string, readonly [string, string]>> = {
  pending: ['circle-large', 'waiting'],
  in_progress: ['loading codicon-modifier-spin', 'running'],
  completed: ['check', 'done'],
  failed: ['error', 'failed'],
}

/** A tool call: what it is about, how it stands, and what came of it, which can be folded away. */
export class ToolView {
  readonly element: HTMLElement
  private readonly details = el('details', { class: 'tool' })
  private readonly summary = el('summary')
  private readonly body = el('div', { class: 'tool-body' })
  private readonly asking = el('div', { class: 'asking' })
  private terminal: TerminalView | undefined
  private touched = false
  private made = ''
  private item: ToolItem

  constructor(item: ToolItem) {
    this.item = item
    this.details.append(this.summary, this.body)
    this.element = el('div', { class: `item tool-item${item.parent ? ' nested' : ''}`, role: 'article', 'data-id': item.id }, this.details, this.asking)
    this.summary.addEventListener('click', () => { this.touched = true })
    this.set(item)
  }

  set(item: ToolItem): void {
    this.item = item
    const [sign, words] = STATUS[item.status] ?? ['circle-large', item.status]
    const command = item.kind === 'execute'
    this.summary.replaceChildren(
      icon('chevron-right', 'chevron'),
      icon(ICONS[item.kind] ?? 'tools', 'kind'),
      el('span', { class: command ? 'title command' : 'title' }, item.title),
      el('span', { class: `status ${item.status}`, title: words }, icon(sign), el('span', { class: 'hidden-words' }, words)),
    )
    this.element.classList.toggle('nested', item.parent !== undefined)
    // What these lead to stands elsewhere: the answer in words, the plan above the place to type.
    this.element.hidden = (item.name === 'done' || item.name === 'plan') && item.status !== 'failed' && !item.question
    this.element.setAttribute('aria-label', `${item.title}, ${words}`)
    // Making its content anew would fold what the user opened and lose places in it: only where it is another one.
    const shape = JSON.stringify([item.parts, item.input, item.exit, item.question !== undefined, item.locations, item.status === 'failed'])
    if (shape !== this.made) {
      this.made = shape
      this.fill(item)
    }
    this.ask(item)
    const wanted = item.question !== undefined || item.parts.some((part) => part.type === 'diff') || (command && item.status === 'in_progress') || item.status === 'failed'
    if (!this.touched) this.details.open = wanted && this.body.childElementCount > 0
    this.details.classList.toggle('bare', this.body.childElementCount === 0)
  }

  output(text: string): void {
    if (this.terminal) {
      this.terminal.append(text)
    } else {
      this.terminal = new TerminalView(text)
      this.body.append(this.terminal.element)
    }
    if (!this.touched && this.item.status === 'in_progress') this.details.open = true
    this.details.classList.remove('bare')
  }

  private fill(item: ToolItem): void {
    const parts: Node[] = []
    const elsewhere = item.locations.filter((at) => !item.parts.some((part) => part.type === 'diff' && part.path === at.path))
    if (elsewhere.length > 0) parts.push(el('div', { class: 'locations' }, ...elsewhere.slice(0, 20).map(location)))
    const program = item.kind === 'execute' && item.input
    // What is asked for is shown whole, whatever of it stands in the title.
    if (program && (item.question !== undefined || program.length > SHORT || !sameText(program, item.title))) parts.push(codeBlock(program, item.name === 'python' ? 'python' : 'bash'))
    else if (item.input && item.kind === 'other') parts.push(codeBlock(item.input, 'json'))
    parts.push(...item.parts.filter((part) => !(item.question && program && part.type === 'text')).map((part) => this.part(part)))
    if (item.output !== undefined && !this.terminal) this.terminal = new TerminalView(item.output)
    if (this.terminal) parts.push(this.terminal.element)
    const { exit } = item
    if (exit && (exit.code !== 0 || exit.signal)) parts.push(el('div', { class: 'exit' }, exit.signal ? `ended by ${exit.signal}` : `exit code ${exit.code ?? 'unknown'}`))
    this.body.replaceChildren(...parts)
  }

  private part(part: ToolPart): Node {
    switch (part.type) {
      case 'diff':
        return change(this.item.id, part)
      case 'image':
        return picture(part.mime, part.data)
      case 'link':
        return el('p', {}, link(part.uri, [part.name]))
      case 'text':
        return new MarkdownView(part.text).element
    }
  }

  private ask(item: ToolItem): void {
    const { question, answer } = item
    this.asking.replaceChildren()
    this.element.classList.toggle('asks', question !== undefined)
    if (question) {
      const press = (option: string): void => {
        for (const button of this.asking.querySelectorAll('button')) button.disabled = true
        host.postMessage({ type: 'answer', question: question.id, option })
      }
      const once = question.options.filter((option) => !option.kind.endsWith('always'))
      const always = question.options.filter((option) => option.kind.endsWith('always'))
      this.asking.append(
        el(
          'div',
          { class: 'question', role: 'group', 'aria-label': `Permission: ${item.title}` },
          el('div', { class: 'words' }, icon('shield'), el('span', {}, 'Cantrip asks for your permission')),
          el(
            'div',
            { class: 'buttons' },
            ...once.map((option) => el('button', { class: option.kind === 'allow_once' ? 'primary' : 'secondary', type: 'button', 'data-kind': option.kind, title: HINTS[option.kind] ?? '', onclick: () => { press(option.id) } }, option.name)),
          ),
          always.length > 0 &&
            el('div', { class: 'always' }, ...always.map((option) => el('button', { class: 'text-button', type: 'button', 'data-kind': option.kind, onclick: () => { press(option.id) } }, icon(option.kind === 'allow_always' ? 'check-all' : 'circle-slash'), el('span', {}, option.name.replace(/`/g, ''))))),
        ),
      )
    } else if (answer && answer !== 'Allow') {
      this.asking.append(el('div', { class: 'answered' }, `Your answer: ${answer.replace(/`/g, '')}`))
    }
  }
}

/** Characters of a command that are sure to be seen in a title. */
const SHORT = 40
const HINTS: Readonly<Record<string, string>> = { allow_once: 'Alt+A', reject_once: 'Alt+R' }

function location(at: { path: string; shown: string; line?: number }): HTMLElement {
  const go = (): void => { host.postMessage({ type: 'location', path: at.path, ...(at.line === undefined ? {} : { line: at.line }) }) }
  return el('button', { class: 'chip', type: 'button', title: `Open ${at.path}`, onclick: go }, icon('go-to-file'), el('span', {}, at.line === undefined ? at.shown : `${at.shown}:${at.line}`))
}

export function picture(mime: string, data: string): HTMLElement {
  if (!/^image\/(png|jpeg|gif|webp|bmp)$/.test(mime)) return el('span', {}, `[${mime}]`)
  return el('img', { src: `data:${mime};base64,${data}`, alt: 'picture' })
}

function sameText(a: string, b: string): boolean {
  return a.replace(/\s+/g, ' ').trim() === b.replace(/\s+/g, ' ').trim()
}
