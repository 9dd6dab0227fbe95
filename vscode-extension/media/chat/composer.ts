import type { Attachment, UserItem } from '../../src/chat/items'
import type { Choice, QueuedMessage, State, Unread } from '../../src/chat/messages'
import { Completion, type Suggestion } from './completion'
import { el, icon, iconButton } from './dom'
import { host } from './host'
import { chip } from './items'
import { Picker, shortName } from './picker'

const MOST_PICTURE = 5_000_000
const KEPT = 50

/** What a model must be able to read for this attachment. Of a file the name tells it, as far as the agent attaches such files. */
function kindOf({ kind, name }: Attachment): Unread | undefined {
  if (kind === 'image' || (kind === 'file' && /\.(?:png|jpe?g|gif|webp)$/i.test(name))) return 'pictures'
  if (kind !== 'file') return undefined
  return /\.pdf$/i.test(name) ? 'PDF files' : /\.(?:wav|mp3)$/i.test(name) ? 'audio' : undefined
}

/** The input area: the text, the attachments, the options, and the button to send or stop. */
export class Composer {
  readonly element: HTMLElement
  readonly completion: Completion
  private readonly picker = new Picker((id, value) => { host.postMessage({ type: 'option', id, value }) })
  private readonly input = el('textarea', { rows: 1, dir: 'auto', placeholder: 'Ask Cantrip (@ files, / commands)', 'aria-label': 'Message to Cantrip', role: 'combobox', 'aria-expanded': 'false' })
  private readonly chips = el('div', { class: 'chips', hidden: true })
  private readonly choices = el('div', { class: 'choices' })
  private readonly usage = el('span', { class: 'usage', hidden: true })
  private readonly button = el('button', { class: 'send', type: 'button', onclick: () => { this.send() } }, icon('arrow-up'))
  private readonly stopButton = el('button', { class: 'send stop', type: 'button', title: 'Stop (Escape)', 'aria-label': 'Stop (Escape)', hidden: true, onclick: () => { host.postMessage({ type: 'stop' }) } }, icon('debug-stop'))
  private readonly editingWords = el('span', { class: 'words' })
  private readonly banner = el('div', { class: 'editing', hidden: true }, icon('edit'), this.editingWords, iconButton('close', 'Do not edit (Escape)', () => { this.stopEditing(); this.focus() }))
  private readonly unread = el('div', { class: 'unread', role: 'status', hidden: true })
  /** The option with the model. */
  private model: Choice | undefined
  private attachments: Attachment[] = []
  /** The message that is edited, and the draft from before. */
  private edited: { readonly id: string; readonly text: string; readonly attachments: Attachment[]; readonly queued: boolean } | undefined
  private running = false
  /** Whether a message can be sent while another one runs. */
  private queues = false
  private opening = false
  private session = ''
  /** The session to which the text goes as soon as it is open, because Enter came before that. */
  private awaited: string | undefined
  private readonly awaits = el('div', { class: 'awaits', hidden: true }, icon('loading codicon-modifier-spin'), 'Sent as soon as the session is open')
  private readonly controls = new Map<string, { readonly shape: string; readonly element: HTMLElement }>()
  private past: string[] = []
  private at = 0

  constructor(private readonly say: (words: string) => void) {
    this.completion = new Completion(this.input, (suggestion, from, to) => { this.complete(suggestion, from, to) })
    const add = iconButton('add', 'Add context: files, symbols, problems, the terminal, changes (@)', () => { this.mention() })
    this.element = el(
      'div',
      { class: 'composer' },
      this.completion.element,
      this.picker.element,
      el('div', { class: 'box' }, this.banner, this.chips, this.unread, this.awaits, this.input, el('div', { class: 'bar' }, add, this.choices, el('span', { class: 'space' }), this.usage, this.stopButton, this.button)),
    )
    this.input.addEventListener('input', () => { this.typed() })
    this.input.addEventListener('keydown', (event) => { this.key(event) })
    this.input.addEventListener('blur', () => { this.completion.hide() })
    this.input.addEventListener('paste', (event) => { this.pasted(event) })
    this.element.addEventListener('dragover', (event) => { event.preventDefault() })
    this.element.addEventListener('drop', (event) => { this.dropped(event) })
    const kept = host.getState() as { draft?: unknown; past?: unknown; session?: unknown } | undefined
    if (typeof kept?.session === 'string') this.session = kept.session
    if (typeof kept?.draft === 'string') this.input.value = kept.draft
    if (Array.isArray(kept?.past)) this.past = kept.past.filter((each): each is string => typeof each === 'string')
    this.at = this.past.length
    this.show(false)
    this.keep()
  }

  focus(): void {
    this.input.focus()
    this.resize()
  }

  set(state: State): void {
    this.completion.setCommands(state.commands)
    this.opening = state.status === 'opening'
    const can = state.status === 'ready' || this.opening
    if (state.session !== this.session) {
      this.session = state.session
      this.keep()
    }
    this.input.disabled = !can
    this.queues = state.queues
    if (this.edited?.queued === true && !state.queue.some((each) => each.id === this.edited?.id)) this.lateEdit()
    this.show(state.running)
    this.model = state.options.find((option) => option.category === 'model')
    this.showChoices(state.options.filter((option) => option.values.length > 1 || option.category === 'model' || typeof option.value === 'boolean'))
    this.showUnread()
    const { usage } = state
    this.usage.hidden = usage === undefined
    if (usage) {
      const part = usage.size > 0 ? Math.min(100, Math.round((100 * usage.used) / usage.size)) : 0
      const percent = usage.size > usage.used ? `${part < 1 ? '<1' : part} %` : ''
      this.usage.replaceChildren(percent, percent && usage.cost ? el('span', { class: 'cost' }, ` · ${usage.cost}`) : usage.cost)
      this.usage.title = `${usage.used.toLocaleString('en')} of ${usage.size.toLocaleString('en')} tokens of the window are used${usage.cost ? `; ${usage.cost} so far` : ''}`
    }
    if (this.awaited === undefined || (this.opening && this.awaited === this.session)) return
    const isOpen = this.awaited === this.session && state.status === 'ready' && state.problem === undefined
    this.await(undefined)
    if (isOpen) this.send()
  }

  private await(session: string | undefined): void {
    this.awaited = session
    this.awaits.hidden = session === undefined
  }

  /** Draw the options anew that have changed. The others keep the focus, an open list, and a click that has begun. */
  private showChoices(options: readonly Choice[]): void {
    const drawn = options.map((option) => {
      const shape = JSON.stringify(option)
      const known = this.controls.get(option.id)
      if (known?.shape === shape) return known.element
      const element = this.control(option)
      this.controls.set(option.id, { shape, element })
      if (known?.element.parentElement === this.choices) known.element.replaceWith(element)
      this.picker.update(option, element)
      return element
    })
    if (drawn.length !== this.choices.children.length || drawn.some((element, place) => this.choices.children[place] !== element)) this.choices.replaceChildren(...drawn)
  }

  attach(attachments: readonly Attachment[], text?: string): void {
    for (const each of attachments) {
      if (!this.attachments.some((known) => known.uri !== undefined && known.uri === each.uri)) this.attachments.push(each)
    }
    if (text !== undefined) this.input.value = text
    this.showChips()
    this.resize()
  }

  /** Edit a message that was sent. When it is sent again, the conversation continues from before it. */
  edit(item: UserItem): void {
    if (this.running) return
    this.beginEdit(item, false)
    document.querySelector(`[data-id="${CSS.escape(item.id)}"]`)?.classList.add('edited')
    this.say('Editing an earlier message. Enter sends it again from before it, Escape stops editing.')
  }

  /** Edit a message that waits. */
  editQueued(message: QueuedMessage): void {
    this.beginEdit(message, true)
    this.say('Editing a message that waits. Enter keeps it in its place, Escape stops editing.')
  }

  /** Add to what is in the composer, as after a message that was never started. */
  add(attachments: readonly Attachment[], text: string): void {
    this.attach(attachments, [this.input.value.trimEnd(), text].filter(Boolean).join('\n\n'))
    this.keep()
  }

  private beginEdit({ id, text, attachments }: { readonly id: string; readonly text: string; readonly attachments: readonly Attachment[] }, queued: boolean): void {
    this.stopEditing()
    this.edited = { id, text: this.input.value, attachments: this.attachments, queued }
    this.editingWords.textContent = queued ? 'Editing a message that waits' : 'Editing an earlier message'
    this.banner.hidden = false
    this.attachments = []
    this.attach(attachments, text)
    this.input.focus()
    this.input.setSelectionRange(text.length, text.length)
  }

  /** The message that is edited has started. What was typed stays, as a new message. */
  private lateEdit(): void {
    const draft = this.edited?.text ?? ''
    this.endEdit()
    if (draft) this.input.value = `${this.input.value}\n\n${draft}`
    this.say('The message has started. Your text is a new message now.')
  }

  /** Bring back the draft from before. */
  stopEditing(): void {
    const { edited } = this
    if (!edited) return
    this.endEdit()
    this.attachments = []
    this.attach(edited.attachments, edited.text)
    this.keep()
  }

  private endEdit(): void {
    this.edited = undefined
    this.banner.hidden = true
    document.querySelector('.item.edited')?.classList.remove('edited')
  }

  /** The control of an option: a check box, a list, or a picker with search. */
  private control(choice: Choice): HTMLElement {
    if (choice.category !== 'model' || typeof choice.value === 'boolean') return control(choice)
    const about = choice.values.find((value) => value.value === choice.value)
    const name = about ? shortName(about) : choice.value
    const button = el(
      'button',
      { class: 'choice', type: 'button', 'data-category': 'model', 'aria-haspopup': 'listbox', 'aria-expanded': 'false', 'aria-label': `${choice.name}: ${name}`, title: [choice.name, choice.description, about?.name, about?.description].filter(Boolean).join('\n'), onclick: () => { this.picker.toggle(choice, button) } },
      icon('sparkle'),
      el('span', { class: 'value' }, name),
      icon('chevron-down', 'small'),
    )
    return button
  }

  /** Send the message. During an answer it waits; `now`: the running answer gets it with its next query. */
  private send(now = false): void {
    const text = this.input.value.trim()
    if ((this.running && !this.queues) || this.input.disabled || (!text && this.attachments.length === 0)) return
    if (this.opening) {
      // The text stays here until then: it comes to nothing if the session cannot be opened.
      this.await(this.session)
      return this.say('It is sent as soon as the session is open')
    }
    const { edited, attachments } = this
    if (edited?.queued === true) {
      this.endEdit()
      host.postMessage({ type: 'editQueued', id: edited.id, text, attachments })
    } else if (edited) {
      this.endEdit()
      host.postMessage({ type: 'resend', item: edited.id, text, attachments })
    } else host.postMessage({ type: 'send', text, attachments, now: now && this.running })
    if (text && this.past.at(-1) !== text) this.past = [...this.past, text].slice(-KEPT)
    this.at = this.past.length
    this.input.value = edited?.text ?? ''
    this.attachments = edited?.attachments ?? []
    this.showChips()
    this.resize()
    this.keep()
    // Immediately: a message that is sent now waits for this one.
    this.show(true)
    this.say('Sent')
  }

  private show(running: boolean): void {
    this.running = running
    const empty = !this.input.value.trim() && this.attachments.length === 0
    const label = this.edited?.queued === true ? 'Change the message that waits (Enter)' : running ? 'Send after this answer (Enter), or into it (Ctrl+Enter)' : 'Send (Enter)'
    this.button.title = label
    this.button.setAttribute('aria-label', label)
    this.button.disabled = this.input.disabled || empty
    // The button that is pressed must not go.
    this.button.hidden = running && (empty || !this.queues)
    this.stopButton.hidden = !running
  }

  private typed(): void {
    // Whoever goes on typing is not done.
    this.await(undefined)
    this.resize()
    this.show(this.running)
    this.completion.update()
    this.keep()
  }

  private key(event: KeyboardEvent): void {
    if (event.isComposing || this.completion.key(event)) return
    if (event.key === 'Enter' && !event.shiftKey && !event.altKey) {
      event.preventDefault()
      this.send(event.ctrlKey || event.metaKey)
    } else if (event.key === 'Escape' && this.edited) {
      event.preventDefault()
      this.stopEditing()
    } else if (event.key === 'Escape' && this.running) {
      event.preventDefault()
      host.postMessage({ type: 'stop' })
    } else if (event.key === 'Backspace' && this.input.value === '' && this.attachments.length > 0) {
      this.attachments.pop()
      this.showChips()
    } else if ((event.key === 'ArrowUp' && this.input.selectionEnd === 0) || (event.key === 'ArrowDown' && this.at < this.past.length && this.input.selectionStart === this.input.value.length)) {
      if (event.altKey || event.shiftKey || this.past.length === 0) return
      event.preventDefault()
      this.at = Math.max(0, Math.min(this.past.length, this.at + (event.key === 'ArrowUp' ? -1 : 1)))
      this.input.value = this.past[this.at] ?? ''
      if (event.key === 'ArrowUp') this.input.setSelectionRange(0, 0)
      this.typed()
    }
  }

  private complete(suggestion: Suggestion, from: number, to: number): void {
    const { value } = this.input
    this.input.value = value.slice(0, from) + suggestion.insert + value.slice(to)
    const place = from + suggestion.insert.length
    this.input.setSelectionRange(place, place)
    if (suggestion.attachment) this.attach([suggestion.attachment])
    this.show(this.running)
    this.keep()
    if (suggestion.insert.endsWith(':')) this.completion.update()
  }

  private mention(): void {
    this.input.focus()
    const { selectionStart: at, value } = this.input
    const before = value.slice(0, at)
    const sign = before === '' || /\s$/.test(before) ? '@' : ' @'
    this.input.setRangeText(sign, at, at, 'end')
    this.typed()
  }

  private pasted(event: ClipboardEvent): void {
    const files = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith('image/'))
    if (files.length === 0) return
    event.preventDefault()
    for (const file of files) void this.picture(file)
  }

  private async picture(file: File): Promise<void> {
    if (file.size > MOST_PICTURE) {
      this.say(`${file.name} is too large: at most ${MOST_PICTURE / 1_000_000} MB`)
      return
    }
    const url = await new Promise<string>((resolve, reject) => {
      const reader = new FileReader()
      reader.onload = () => { resolve(typeof reader.result === 'string' ? reader.result : '') }
      reader.onerror = () => { reject(new Error('the picture cannot be read')) }
      reader.readAsDataURL(file)
    })
    this.attach([{ kind: 'image', name: file.name || 'picture', mime: file.type, data: url.slice(url.indexOf(',') + 1) }])
  }

  private dropped(event: DragEvent): void {
    event.preventDefault()
    const images = [...(event.dataTransfer?.files ?? [])].filter((file) => file.type.startsWith('image/'))
    for (const file of images) void this.picture(file)
    const uris = (event.dataTransfer?.getData('application/vnd.code.uri-list') || event.dataTransfer?.getData('text/uri-list') || '').split(/\r?\n/).filter((line) => line && !line.startsWith('#'))
    if (uris.length > 0 && images.length === 0) host.postMessage({ type: 'dropped', uris })
  }

  /** Say at once what the model cannot read, and offer another one. */
  private showUnread(): void {
    const kinds = [...new Set(this.attachments.map(kindOf))].filter((kind) => kind !== undefined && this.model?.unread?.includes(kind)).join(' or ')
    if (this.unread.dataset.kinds === kinds) return
    this.unread.dataset.kinds = kinds
    this.unread.hidden = kinds === ''
    const other = (): void => {
      const button = this.choices.querySelector<HTMLElement>('[data-category="model"]')
      if (this.model && button) this.picker.toggle(this.model, button)
    }
    this.unread.replaceChildren(
      ...(kinds !== '' ? [icon('warning'), el('span', {}, `This model cannot read ${kinds}. It gets the message without them. `, el('button', { class: 'text-button', type: 'button', onclick: other }, 'Choose another model'))] : []),
    )
  }

  private showChips(): void {
    this.showUnread()
    this.chips.hidden = this.attachments.length === 0
    this.chips.replaceChildren(
      ...this.attachments.map((each) =>
        chip(each, () => {
          this.attachments = this.attachments.filter((other) => other !== each)
          this.showChips()
          this.input.focus()
        }),
      ),
    )
    this.show(this.running)
  }

  private resize(): void {
    this.input.style.height = 'auto'
    this.input.style.height = `${Math.min(this.input.scrollHeight, Math.round(window.innerHeight * 0.4))}px`
  }

  private keep(): void {
    host.setState({ ...(host.getState() as object | undefined), draft: this.edited?.text ?? this.input.value, past: this.past, session: this.session, tab: document.body.dataset.tab })
  }
}

const CHOICE_ICONS: Readonly<Record<string, string>> = { mode: 'shield', thought_level: 'lightbulb', _recipe: 'book' }

function control(choice: Choice): HTMLElement {
  const about = choice.values.find((value) => value.value === choice.value)
  const title = [choice.name, choice.description, about?.description, choice.category === 'mode' ? 'Ctrl+Alt+M switches to Ask and back' : ''].filter(Boolean).join('\n')
  if (typeof choice.value === 'boolean') {
    const box = el('input', { type: 'checkbox', checked: choice.value, 'aria-label': choice.name })
    box.addEventListener('change', () => { host.postMessage({ type: 'option', id: choice.id, value: box.checked }) })
    return el('label', { class: 'choice', title }, box, choice.name)
  }
  const select = el('select', { 'aria-label': choice.name, title })
  const groups = new Map<string, HTMLElement>()
  for (const value of choice.values) {
    const option = el('option', { value: value.value, title: value.description, selected: value.value === choice.value }, value.name)
    if (value.group === undefined) {
      select.append(option)
      continue
    }
    let group = groups.get(value.group)
    if (!group) {
      group = el('optgroup', { label: value.group })
      groups.set(value.group, group)
      select.append(group)
    }
    group.append(option)
  }
  select.addEventListener('change', () => { host.postMessage({ type: 'option', id: choice.id, value: select.value }) })
  return el('span', { class: 'choice', title, 'data-category': choice.category }, icon(CHOICE_ICONS[choice.category] ?? 'settings'), el('span', { class: 'value', 'aria-hidden': 'true' }, about?.name ?? choice.value), icon('chevron-down', 'small'), select)
}
