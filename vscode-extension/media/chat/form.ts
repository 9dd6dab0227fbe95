import { type Content, type FormField, problemOf, typed, type Value } from '../../src/chat/formfields'
import type { FormItem } from '../../src/chat/items'
import { el, icon, withVisibleCharacters } from './dom'
import { host } from './host'
import { inlineWords, MarkdownView } from './markdown'

/** More choices than this are a list that opens, if there are other fields. */
const MOST_ROWS = 8
/** The choices that have a key of their own. */
const MOST_KEYS = 9

/** What to do when a card with the focus goes away; the page sets it. */
export const afterForm = { focus: (): void => undefined }

/** The open cards by their questions: what is typed there survives a change of the conversation that is shown. */
const cards = new Map<string, HTMLElement>()

/** A field of a card: its element, and its value as it is now. */
interface Input {
  readonly field: FormField
  readonly element: HTMLElement
  value(): Value | undefined
  focus(): void
  /** Show what is wrong, or that nothing is. */
  tell(problem: string): void
}

/** A question of the agent with fields for the answer; after that, the question and the answer in one line. */
export class FormView {
  readonly element: HTMLElement
  private shown = ''

  constructor(item: FormItem) {
    this.element = el('div', { class: 'item form-item', role: 'article', 'aria-label': 'Question of Cantrip', 'data-id': item.id })
    this.set(item)
  }

  set(item: FormItem): void {
    const shown = JSON.stringify([item.question, item.answer, item.said])
    // New elements would lose the focus.
    if (shown === this.shown) return
    this.shown = shown
    const focused = this.element.contains(document.activeElement)
    this.element.classList.toggle('asks', item.question !== undefined)
    if (item.question !== undefined) {
      const made = cards.get(item.question) ?? card(item.question, item)
      cards.set(item.question, made)
      this.element.replaceChildren(made)
      return
    }
    if (item.form !== undefined) cards.delete(item.form)
    this.element.replaceChildren(el('div', { class: 'asked-words' }, icon('comment-discussion'), new MarkdownView(item.message).element), answered(item))
    if (focused) afterForm.focus()
  }
}

function answered({ id, answer, said }: FormItem): HTMLElement {
  if (answer === 'answered') return el('div', { class: 'answered' }, 'You answered: ', el('span', { class: 'said-answer', dir: 'auto' }, ...withVisibleCharacters(said ?? '')))
  if (answer === 'unanswered') return el('div', { class: 'answered' }, el('span', {}, 'Not answered. '), el('button', { class: 'text-button again when-idle', type: 'button', onclick: () => { host.postMessage({ type: 'askAgain', item: id }) } }, 'Ask again?'))
  return el('div', { class: 'answered' }, answer === 'skipped' ? 'You skipped this question.' : answer === 'stopped' ? 'Stopped by you.' : 'Not answered.')
}

/** The question in words, for the announcement. */
export function plainQuestion({ message }: FormItem): string {
  return message.replace(/[*_`#>]+/g, '').replace(/\s+/g, ' ').trim().slice(0, 300)
}

/** Go to the first field of a card. */
export function enterForm(question: HTMLElement): void {
  question.querySelector<HTMLElement>('[data-first]')?.focus()
}

function card(form: string, item: FormItem): HTMLElement {
  const [only] = item.fields
  const send = (content: Content): void => {
    close()
    host.postMessage({ type: 'answerForm', form, content })
  }
  const skip = el('button', { class: 'secondary', type: 'button', 'data-kind': 'reject_once', title: 'Alt+R', onclick: () => {
    close()
    host.postMessage({ type: 'skipForm', form })
  } }, 'Skip')
  const close = (): void => {
    if (frame.contains(document.activeElement)) afterForm.focus()
    for (const each of frame.querySelectorAll<HTMLButtonElement | HTMLInputElement>('button, input, textarea, select')) each.disabled = true
  }
  const question = new MarkdownView(item.message).element
  question.classList.add('subject')
  const words = el('div', { class: 'words' }, icon('comment-discussion'), el('span', {}, 'Cantrip asks'))
  const frame = el('div', { class: 'question form-question', role: 'group', 'aria-label': `Cantrip asks: ${plainQuestion(item)}` }, words, question)
  frame.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || event.isComposing) return
    // It does not stop the agent.
    event.preventDefault()
    afterForm.focus()
  })
  if (item.fields.length === 1 && only !== undefined && (only.kind === 'choice' || only.kind === 'boolean')) {
    frame.append(rows(only, (value) => { send({ [only.name]: value }) }), el('div', { class: 'buttons' }, skip))
    return frame
  }
  const inputs = item.fields.map((field, at) => inputOf(field, `${form}-${at}`, item.fields.length === 1))
  const answer = (): void => {
    const content: [string, Value][] = []
    let wrong: Input | undefined
    for (const input of inputs) {
      const value = input.value()
      const problem = problemOf(input.field, value)
      input.tell(problem)
      if (problem !== '') wrong ??= input
      else if (value !== undefined && value !== '') content.push([input.field.name, value])
    }
    if (wrong !== undefined) wrong.focus()
    else send(Object.fromEntries(content))
  }
  frame.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing || event.target instanceof HTMLButtonElement || event.target instanceof HTMLSelectElement) return
    if (event.target instanceof HTMLElement && event.target.closest('a')) return
    event.preventDefault()
    answer()
  })
  const needed = item.fields.length > 1 && item.fields.some((field) => field.required)
  frame.append(
    ...inputs.map((input) => input.element),
    el('div', { class: 'buttons' }, el('button', { class: 'primary', type: 'button', 'data-first': item.fields.length === 0, onclick: answer }, 'Answer'), skip, needed && el('span', { class: 'size' }, '* needed')),
  )
  return frame
}

/** The choices of the only field: a press or a number key answers. */
function rows(field: FormField, choose: (value: Value) => void): HTMLElement {
  const choices = field.kind === 'boolean' ? [{ value: true, title: 'Yes', about: '' }, { value: false, title: 'No', about: '' }] : field.choices
  const first = Math.max(0, choices.findIndex((each) => each.value === field.preset))
  const buttons = choices.map((each, at) =>
    el(
      'button',
      { class: 'form-choice', type: 'button', tabindex: at === first ? 0 : -1, 'data-first': at === first, onclick: () => { choose(each.value) } },
      at < MOST_KEYS && el('kbd', { 'aria-hidden': 'true' }, String(at + 1)),
      el('span', { class: 'inner' }, el('span', { class: 'name', dir: 'auto' }, ...inlineWords(each.title)), each.about !== '' && el('span', { class: 'about', dir: 'auto' }, each.about)),
    ),
  )
  const list = el('div', { class: 'form-choices', role: 'group', 'aria-label': field.label }, ...buttons)
  list.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return
    const now = buttons.findIndex((each) => each === document.activeElement)
    const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: buttons.length - 1 }[event.key]
    if (to !== undefined) {
      event.preventDefault()
      const next = buttons.at(to % buttons.length)
      for (const each of buttons) each.tabIndex = each === next ? 0 : -1
      next?.focus()
    } else if (/^[1-9]$/.test(event.key)) {
      event.preventDefault()
      buttons[Number(event.key) - 1]?.click()
    }
  })
  return el('div', { class: 'form-field' }, field.about !== '' && el('div', { class: 'about' }, field.about), list)
}

/** A field as an input. The only field of a card has no label: the question is its label. */
function inputOf(field: FormField, id: string, only: boolean): Input {
  const about = field.about === '' ? undefined : el('div', { class: 'about', id: `${id}-about`, dir: 'auto' }, field.about)
  const error = el('div', { class: 'field-error', id: `${id}-error`, role: 'alert', hidden: true })
  const described = [...(about ? [about.id] : []), error.id].join(' ')
  const named = only ? { 'aria-label': field.label } : { 'aria-labelledby': `${id}-label` }
  const made = controlOf(field, id, { ...named, 'aria-describedby': described, 'aria-required': field.required ? 'true' : undefined }, only)
  const label = el('label', { class: 'label', id: `${id}-label`, for: made.single ? id : undefined, dir: 'auto' }, ...inlineWords(field.label), field.required && el('span', { class: 'needed', 'aria-hidden': 'true' }, ' *'))
  const tell = (problem: string): void => {
    error.hidden = problem === ''
    error.textContent = problem
    if (problem === '') made.main.removeAttribute('aria-invalid')
    else made.main.setAttribute('aria-invalid', 'true')
  }
  // What was wrong is looked at again while it is corrected.
  made.main.addEventListener('input', () => { if (!error.hidden) tell(problemOf(field, made.value())) })
  return {
    field,
    value: () => made.value(),
    focus: () => { made.first.focus() },
    tell,
    element: el('div', { class: 'form-field' }, !only && field.kind !== 'boolean' && label, about, made.main, error),
  }
}

interface Control {
  readonly main: HTMLElement
  /** Where the focus goes. */
  readonly first: HTMLElement
  /** Whether it is one control, which a label can name. */
  readonly single: boolean
  value(): Value | undefined
}

type Names = Readonly<Record<string, string | undefined>>

function controlOf(field: FormField, id: string, names: Names, only: boolean): Control {
  const { kind, preset } = field
  if (kind === 'choices') {
    const chosen = Array.isArray(preset) ? (preset as readonly string[]) : []
    const boxes = field.choices.map((each, at) => el('input', { type: 'checkbox', value: each.value, checked: chosen.includes(each.value), 'data-first': at === 0 }))
    const main = el('div', { class: 'form-boxes', role: 'group', ...names, 'aria-required': undefined }, ...field.choices.map((each, at) => row(boxes[at], each, only && at < MOST_KEYS ? at + 1 : undefined)))
    if (only) {
      main.addEventListener('keydown', (event) => {
        const box = /^[1-9]$/.test(event.key) && !event.ctrlKey && !event.altKey && !event.metaKey ? boxes[Number(event.key) - 1] : undefined
        if (box === undefined) return
        event.preventDefault()
        box.focus()
        box.click()
      })
    }
    return { main, first: boxes[0] ?? main, single: false, value: () => boxes.filter((box) => box.checked).map((box) => box.value) }
  }
  if (kind === 'boolean') {
    const box = el('input', { type: 'checkbox', id, checked: preset === true, 'data-first': true, 'aria-describedby': names['aria-describedby'] })
    return { main: el('label', { class: 'form-row' }, box, el('span', { class: 'name', dir: 'auto' }, ...inlineWords(field.label))), first: box, single: true, value: () => box.checked }
  }
  if (kind === 'choice' && field.choices.length <= MOST_ROWS) {
    // One that is not needed can be left out again.
    const offered = [...field.choices, ...(field.required ? [] : [{ value: undefined, title: 'No answer', about: '' }])]
    const start = offered.findIndex((each) => each.value === preset)
    const radios = offered.map((_, at) => el('input', { type: 'radio', name: id, checked: at === start, 'data-first': at === Math.max(0, start) }))
    const main = el('div', { class: 'form-boxes', role: 'radiogroup', ...names }, ...offered.map((each, at) => row(radios[at], each)))
    return { main, first: radios[Math.max(0, start)] ?? main, single: false, value: () => offered[radios.findIndex((radio) => radio.checked)]?.value }
  }
  if (kind === 'choice') {
    const main = el('select', { id, 'data-first': true, ...names }, el('option', { value: '' }, field.required ? 'Choose…' : 'No answer'), ...field.choices.map((each, at) => el('option', { value: String(at), selected: each.value === preset }, each.title)))
    return { main, first: main, single: true, value: () => (main.value === '' ? undefined : field.choices[Number(main.value)]?.value) }
  }
  const start = preset === undefined ? '' : String(preset)
  if (kind === 'text' && field.format === undefined) {
    const area = el('textarea', { id, rows: only ? 2 : 1, 'data-first': true, ...names, placeholder: only ? 'Your answer' : undefined })
    area.value = start
    const grow = (): void => {
      area.style.height = 'auto'
      area.style.height = `${Math.min(area.scrollHeight + 2, 240)}px`
    }
    area.addEventListener('input', grow)
    return { main: area, first: area, single: true, value: () => typed(field, area.value) }
  }
  const type = kind === 'secret' ? 'password' : field.format === 'date' ? 'date' : field.format === 'date-time' ? 'datetime-local' : 'text'
  const mode = kind === 'integer' ? 'numeric' : kind === 'number' ? 'decimal' : field.format === 'email' ? 'email' : field.format === 'uri' ? 'url' : undefined
  const input = el('input', { id, type, inputmode: mode, autocomplete: 'off', spellcheck: 'false', 'data-first': true, ...names })
  input.value = field.format === 'date-time' ? localTime(start) : start
  const value = (): Value | undefined => (field.format === 'date-time' && input.value !== '' ? new Date(input.value).toISOString() : typed(field, input.value))
  return { main: input, first: input, single: true, value }
}

function row(control: HTMLElement | undefined, { title, about }: { readonly title: string; readonly about: string }, key?: number): HTMLElement {
  return el('label', { class: 'form-row' }, control, key !== undefined && el('kbd', { 'aria-hidden': 'true' }, String(key)), el('span', { class: 'inner' }, el('span', { class: 'name', dir: 'auto' }, ...inlineWords(title)), about !== '' && el('span', { class: 'about', dir: 'auto' }, about)))
}

/** A time as the input for times has it: without a zone. */
function localTime(text: string): string {
  const at = new Date(text)
  return Number.isNaN(at.getTime()) ? '' : new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16)
}
