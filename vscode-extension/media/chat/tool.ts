import type { Question, TestReport, ToolItem, ToolPart } from '../../src/chat/items'
import { answered, questionText } from '../../src/chat/questions'
import { isMarked, pieces } from '../../src/chat/visible'
import { change } from './change'
import { isHidden, timeOf } from '../../src/chat/runs'
import { ChildrenView } from './children'
import { codeBlock } from './codeblock'
import { el, icon, iconButton, withVisibleCharacters } from './dom'
import { host } from './host'
import { link, MarkdownView, withPlaces } from './markdown'
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
  rejected: ['circle-slash', 'not done'],
  stopped: ['circle-slash', 'stopped'],
}

/** The time of the extension host, as far as it differs from that of the page's machine, in ms. */
export const clock = { ahead: 0 }

/** Write how long the running calls have taken. */
export function tick(): void {
  for (const each of document.querySelectorAll<HTMLElement>('.seconds[data-started]')) each.textContent = timeOf(Number(each.dataset['started']), Date.now() + clock.ahead)
}

/** A tool call: its title, its status and its collapsible result, or the permission question. */
export class ToolView {
  readonly element: HTMLElement
  private readonly details = el('details', { class: 'tool' })
  private readonly summary = el('summary')
  private readonly body = el('div', { class: 'tool-body' })
  private readonly asking = el('div', { class: 'asking' })
  private terminal: TerminalView | undefined
  private children: ChildrenView | undefined
  private readonly openOutput = (): void => { host.postMessage({ type: 'openOutput', item: this.item.id }) }
  private readonly stop = iconButton('debug-stop', 'Stop this call; Cantrip goes on', () => {
    this.stop.disabled = true
    host.postMessage({ type: 'stopCall', item: this.item.id })
  }, 'stop-call')
  private touched = false
  private recorded = false
  private renderedShape = ''
  private asked = ''
  private item: ToolItem

  constructor(item: ToolItem) {
    this.item = item
    this.details.append(this.summary, this.body)
    this.element = el('div', { class: `item tool-item${item.parent ? ' nested' : ''}`, role: 'article', 'data-id': item.id }, this.details, this.stop, this.asking)
    this.summary.addEventListener('click', () => { this.touched = true })
    this.set(item)
  }

  set(item: ToolItem): void {
    this.item = item
    const state = stateOf(item)
    const [sign, words] = STATUS[state] ?? ['circle-large', state]
    const { program } = item
    const command = program !== undefined && item.tests === undefined
    this.summary.replaceChildren(
      icon('chevron-right', 'chevron'),
      icon(ICONS[item.kind] ?? 'tools', 'kind'),
      command ? el('span', { class: 'title command' }, ...withVisibleCharacters(program.text, 'command'), left(program.left)) : el('span', { class: 'title' }, ...withVisibleCharacters(item.title)),
      el('span', { class: 'seconds', 'aria-hidden': 'true', 'data-started': state === 'in_progress' ? item.started : undefined }, timeOf(item.started, item.ended ?? (state === 'in_progress' ? Date.now() + clock.ahead : undefined))),
      el('span', { class: `status ${state}`, title: words }, icon(sign), el('span', { class: 'hidden-words' }, words)),
    )
    this.element.classList.toggle('nested', item.parent !== undefined)
    this.element.classList.toggle('live', state === 'in_progress')
    if (state !== 'in_progress') this.stop.disabled = false
    // The results of these calls are shown elsewhere: the answer as text, the plan above the input, a question as a card.
    this.element.hidden = isHidden(item)
    this.element.setAttribute('aria-label', `${item.title}, ${words}`)
    // An open question already shows the subject of the call.
    this.details.hidden = item.question !== undefined
    this.setChildren(item)
    // Create the content again only if it changed: that would collapse what the user opened and lose scroll positions.
    const shape = JSON.stringify([item.question !== undefined, item.parts, item.input, item.exit, item.tests, item.locations, item.answer, item.stopped, item.status === 'failed', item.recorded, item.children === undefined])
    if (shape !== this.renderedShape) {
      this.renderedShape = shape
      this.fill(item)
    }
    this.ask(item)
    const wanted = item.parts.some((part) => part.type === 'diff') || (command && item.status === 'in_progress') || state === 'failed' || state === 'stopped'
    if (!this.touched) this.details.open = wanted && !item.question && this.body.childElementCount > 0
    this.bare()
  }

  /** The lines of its children. The line of the only child stands for the call. */
  private setChildren(item: ToolItem): void {
    if (!item.children?.length) return
    if (!this.children) {
      this.children = new ChildrenView()
      this.details.after(this.children.element)
    }
    const only = item.name === 'call_agent' && item.children.length === 1
    this.children.set(item.children, only && item.status === 'failed' && !item.stopped, only ? this.body : undefined)
    if (only) this.details.hidden = true
    else if (this.body.parentElement !== this.details) this.details.append(this.body)
  }

  output(text: string): void {
    if (this.terminal) {
      this.terminal.append(text)
    } else {
      this.terminal = new TerminalView(text, this.openOutput)
      this.body.append(this.terminal.element)
    }
    if (!this.touched && this.item.status === 'in_progress') this.details.open = true
    this.bare()
  }

  /** Whether there is nothing to expand. A command that is longer than one line can be expanded. */
  private bare(): void {
    this.details.classList.toggle('bare', this.body.childElementCount === 0 && (this.item.program?.text.length ?? 0) < SHORT && !this.item.program?.text.includes('\n'))
  }

  private fill(item: ToolItem): void {
    if (item.question) {
      this.body.replaceChildren()
      return
    }
    const parts: Node[] = []
    const elsewhere = item.locations.filter((at) => !item.parts.some((part) => part.type === 'diff' && part.path === at.path))
    if (elsewhere.length > 0) parts.push(el('div', { class: 'locations' }, ...elsewhere.slice(0, 20).map(location)))
    if (item.tests) parts.push(...tests(item.tests, item.program?.text, this.openOutput))
    else if (item.input && item.kind === 'other' && !item.children?.length) parts.push(codeBlock(item.input, 'json', { used: false }))
    if (!item.tests) parts.push(...item.parts.map((part) => this.part(part)))
    if (item.output && (!this.terminal || (item.recorded && !this.recorded))) this.terminal = new TerminalView(item.output, this.openOutput)
    this.recorded = item.recorded === true
    if (this.terminal) parts.push(this.terminal.element)
    const { exit } = item
    if (exit && !item.stopped && (exit.code !== 0 || exit.signal)) parts.push(el('div', { class: 'exit' }, exit.signal ? `Ended by ${exit.signal}` : `Exit code ${exit.code ?? 'unknown'}`))
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
      case 'output':
        return new TerminalView(part.text, this.openOutput).element
      case 'text':
        return new MarkdownView(part.text).element
    }
  }

  private ask(item: ToolItem): void {
    const { question, answer } = item
    const shape = JSON.stringify([question, answer, item.parts, item.program, item.input, item.title, item.planText])
    // New buttons would lose the focus.
    if (shape === this.asked) return
    this.asked = shape
    this.asking.replaceChildren()
    this.element.classList.toggle('asks', question !== undefined)
    if (question) {
      const press = (option: string, note: { reason?: string; plan?: string } = {}): void => {
        for (const button of this.asking.querySelectorAll('.buttons button, .always button, .reason button')) (button as HTMLButtonElement).disabled = true
        host.postMessage({ type: 'answer', question: question.id, option, ...note })
      }
      // The page asks for these texts itself.
      const options = question.options.filter((option) => !WITH_FORM.has(option.id))
      const words = questionText(item)
      if (item.planText !== undefined) {
        this.asking.append(planQuestion(words, item.planText, options, press))
        return
      }
      const once = options.filter((option) => !option.kind.endsWith('always'))
      const always = options.filter((option) => option.kind.endsWith('always'))
      const reject = once.find((option) => option.kind === 'reject_once')
      this.asking.append(
        el(
          'div',
          { class: 'question', role: 'group', 'aria-label': words },
          el('div', { class: 'words' }, icon('shield'), el('span', {}, words)),
          el('div', { class: 'subject' }, ...this.subject(item)),
          el(
            'div',
            { class: 'buttons' },
            ...once.map((option) => el('button', { class: option === once[0] && option.kind === 'allow_once' ? 'primary' : 'secondary', type: 'button', 'data-kind': option.kind, title: (option === once.find(({ kind }) => kind === option.kind) && HINTS[option.kind]) || '', onclick: () => { press(option.id) } }, ...withVisibleCharacters(option.name, 'command'))),
            size(item),
          ),
          (always.length > 0 || reject !== undefined) &&
            el('div', { class: 'always' }, reject && reason('Reject with a reason…', 'Why? Cantrip reads it.', 'Reject', (text) => { press(reject.id, { reason: text }) }), ...always.map((option) => el('button', { class: 'text-button', type: 'button', 'data-kind': option.kind, onclick: () => { press(option.id) } }, icon(option.kind === 'allow_always' ? 'check-all' : 'circle-slash'), el('span', {}, ...withVisibleCharacters(option.name.replace(/`/g, ''), 'command'))))),
        ),
      )
    } else if (answer === 'unanswered') {
      this.asking.append(el('div', { class: 'answered' }, el('span', {}, 'Not answered. '), el('button', { class: 'text-button again', type: 'button', onclick: () => { host.postMessage({ type: 'askAgain', item: item.id }) } }, 'Ask again?')))
    } else {
      const said = answered(item, answer)
      if (said) this.asking.append(el('div', { class: 'answered' }, said))
    }
  }

  /** The complete subject of the decision. */
  private subject(item: ToolItem): Node[] {
    const { program } = item
    if (program) {
      const found = pieces(program.text, 'command')
      return [
        el('pre', { class: 'code-block command', tabindex: 0, 'aria-label': program.language === 'python' ? 'Code' : 'Command' }, el('code', {}, ...withVisibleCharacters(program.text, 'command')), left(program.left)),
        ...(isMarked(found) ? [el('div', { class: 'careful' }, icon('warning'), el('span', {}, 'Some characters here cannot be seen or look like others. They are marked.'))] : []),
      ]
    }
    const made = item.parts.map((part) => this.part(part))
    if (item.parts.some((part) => part.type === 'diff')) return made
    return [el('div', { class: 'about' }, ...withVisibleCharacters(item.title)), ...(item.input ? [el('pre', { class: 'code-block command', tabindex: 0, 'aria-label': 'Arguments' }, el('code', {}, ...withVisibleCharacters(item.input, 'command')))] : []), ...made]
  }
}

/** Options after which the agent asks with a form. */
const WITH_FORM: ReadonlySet<string> = new Set(['reject_with_reason', 'edit_plan', 'return_with_comments'])

/** A button that opens a field for a text, and a button to send it. */
function reason(title: string, hint: string, send: string, press: (text: string) => void): HTMLElement {
  const field = el('textarea', { rows: 2, placeholder: hint, 'aria-label': title.replace('…', '') })
  const go = (): void => { if (field.value.trim()) press(field.value.trim()) }
  const frame = el('div', { class: 'reason-field', hidden: true }, field, el('button', { class: 'secondary', type: 'button', onclick: go }, send))
  const open = (shown: boolean): void => {
    frame.hidden = !shown
    button.setAttribute('aria-expanded', String(shown))
    if (shown) field.focus()
    else button.focus()
  }
  const button = el('button', { class: 'text-button', type: 'button', 'aria-expanded': 'false', onclick: () => { open(frame.hidden !== false) } }, icon('comment'), el('span', {}, title))
  field.addEventListener('keydown', (event) => {
    if (event.isComposing) return
    if (event.key === 'Enter' && !event.shiftKey) {
      event.preventDefault()
      go()
    } else if (event.key === 'Escape') {
      // It does not stop the agent.
      event.preventDefault()
      open(false)
    }
  })
  return el('div', { class: 'reason' }, button, frame)
}

/** The question about a plan: the plan, which can be edited, a button for each mode to carry it out in, and comments. */
function planQuestion(words: string, plan: string, options: Question['options'], press: (option: string, note?: { reason?: string; plan?: string }) => void): HTMLElement {
  const view = el('div', { class: 'plan-text', tabindex: 0, role: 'document', 'aria-label': 'Plan' }, new MarkdownView(plan).element)
  const field = el('textarea', { class: 'plan-edit', rows: 12, 'aria-label': 'Plan, in Markdown', hidden: true })
  field.value = plan
  const edit = el('button', { class: 'text-button', type: 'button', 'aria-pressed': 'false' }, icon('edit'), el('span', {}, 'Edit the plan'))
  const show = (editing: boolean): void => {
    field.hidden = !editing
    view.hidden = editing
    edit.setAttribute('aria-pressed', String(editing))
    edit.replaceChildren(icon(editing ? 'eye' : 'edit'), el('span', {}, editing ? 'Show the edited plan' : 'Edit the plan'))
    if (editing) field.focus()
    else view.replaceChildren(new MarkdownView(field.value).element)
  }
  edit.addEventListener('click', () => { show(field.hidden !== false) })
  field.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return
    event.preventDefault()
    show(false)
    edit.focus()
  })
  const edited = (): { plan?: string } => (field.value.trim() !== '' && field.value.trim() !== plan.trim() ? { plan: field.value.trim() } : {})
  const approvals = options.filter((option) => option.kind.startsWith('allow'))
  const reject = options.find((option) => option.kind === 'reject_once')
  return el(
    'div',
    { class: 'question plan-question', role: 'group', 'aria-label': words },
    el('div', { class: 'words' }, icon('checklist'), el('span', {}, words), edit),
    view,
    field,
    el(
      'div',
      { class: 'buttons' },
      ...approvals.map((option, at) => el('button', { class: at === 0 ? 'primary' : 'secondary', type: 'button', 'data-mode': option.id, ...(at === 0 ? { 'data-kind': 'allow_once', title: HINTS.allow_once } : {}), onclick: () => { press(option.id, edited()) } }, ...withVisibleCharacters(option.name, 'command'))),
      reject && el('button', { class: 'secondary', type: 'button', 'data-kind': 'reject_once', title: HINTS.reject_once, onclick: () => { press(reject.id) } }, ...withVisibleCharacters(reject.name, 'command')),
    ),
    reject && el('div', { class: 'always' }, reason('Return with comments…', 'What should be different?', 'Return', (text) => { press(reject.id, { reason: text, ...edited() }) })),
  )
}

/** The length of a command that fits in one line. */
const SHORT = 30
/** The number of lines that are shown without collapsing. */
const GLANCE = 12
const HINTS: Readonly<Record<string, string>> = { allow_once: 'Alt+A', reject_once: 'Alt+R' }

/** The status of a call for the user: failing tests are not a success, and a rejected call is not a failure. */
function stateOf(item: ToolItem): string {
  if (item.answer === 'reject_once' || item.answer === 'reject_always' || item.answer === 'stopped' || item.answer === 'unanswered' || item.answer === 'passed') return 'rejected'
  if (item.stopped) return 'stopped'
  if (item.status === 'completed' && (item.tests?.ok === false || (item.exit && (item.exit.signal !== null || (item.exit.code ?? 0) !== 0)))) return 'failed'
  return item.status
}

/** Hints for a long question, of what is easily missed. */
function size(item: ToolItem): HTMLElement | false {
  const lines = item.program ? item.program.text.split('\n').length : item.parts.reduce((sum, part) => sum + (part.type === 'diff' ? part.hunks.reduce((all, hunk) => all + hunk.lines.length, 0) : 0), 0)
  const missing = (item.program?.left ?? 0) > 0 || item.parts.some((part) => part.type === 'diff' && part.left > 0)
  if (lines <= GLANCE && !missing) return false
  return el('span', { class: 'size' }, missing ? 'Not all of it is shown here.' : `${lines} lines: read them from the start.`)
}

function left(count: number): HTMLElement | false {
  return count > 0 && el('mark', { class: 'spelled' }, `${count.toLocaleString('en')} more characters are not shown`)
}

/** The failed tests with their reasons, then the output of the command. */
function tests(report: TestReport, command: string | undefined, openOutput: () => void): Node[] {
  return [
    ...(command ? [el('pre', { class: 'code-block command' }, el('code', {}, ...withVisibleCharacters(command, 'command')))] : []),
    ...(report.note ? [el('p', { class: 'note' }, report.note)] : []),
    ...(report.failures.length > 0
      ? [
          el(
            'ul',
            { class: 'failures' },
            ...report.failures.map((failure) => el('li', {}, el('div', { class: 'name' }, icon('error'), el('span', {}, failure.name)), failure.cause !== '' && el('div', { class: 'cause' }, ...withPlaces(failure.cause)))),
          ),
        ]
      : []),
    ...(report.output ? [new TerminalView(report.output, openOutput).element] : []),
  ]
}

function location(at: { path: string; shown: string; line?: number }): HTMLElement {
  const go = (): void => { host.postMessage({ type: 'location', path: at.path, ...(at.line === undefined ? {} : { line: at.line }) }) }
  return el('button', { class: 'chip', type: 'button', title: `Open ${at.path}`, onclick: go }, icon('go-to-file'), el('span', {}, at.line === undefined ? at.shown : `${at.shown}:${at.line}`))
}

export function picture(mime: string, data: string): HTMLElement {
  if (!/^image\/(png|jpeg|gif|webp|bmp)$/.test(mime)) return el('span', {}, `[${mime}]`)
  return el('img', { src: `data:${mime};base64,${data}`, alt: 'picture' })
}
