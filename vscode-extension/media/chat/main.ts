/** The page of the chat panel. It stores only the draft; the extension host sends everything else. */
import type { State, HostMessage } from '../../src/chat/messages'
import { questionText } from '../../src/chat/questions'
import { ChangedFiles } from './changed'
import { Composer } from './composer'
import { el, icon } from './dom'
import { FindBar } from './find'
import { afterForm, enterForm, plainQuestion } from './form'
import { host } from './host'
import { editing, error } from './items'
import { Log } from './log'
import { pictureFound } from './picture'
import { Queue } from './queue'
import { Servers } from './servers'
import { Sessions } from './sessions'
import { clock, tick } from './tool'

const live = el('div', { class: 'hidden-words', role: 'status', 'aria-live': 'polite' })
const empty = el('div', { class: 'empty' })
const log = new Log(empty)
const composer = new Composer(announce)
const find = new FindBar(log, () => { composer.focus() })
const sessions = new Sessions(() => { composer.focus() })
const servers = new Servers(() => { composer.focus() }, announce)
const queue = new Queue((message) => { composer.editQueued(message) }, () => { composer.focus() }, announce)
const changed = new ChangedFiles(() => { composer.focus() }, announce)
afterForm.focus = () => { composer.focus() }
editing.edit = (item) => { composer.edit(item) }
const plan = el('details', { class: 'plan', hidden: true, open: true })
let running = false
let session = ''
let mode = ''
const asked = new Set<string>()

function announce(words: string): void {
  live.textContent = ''
  // Without this, the same text would not be announced again.
  requestAnimationFrame(() => { live.textContent = words })
}

const EMPTY = {
  ready: ['What should Cantrip do?', 'It works in this folder, in a sandbox. You can undo each of its changes.'],
  opening: ['Opening the session', 'Its messages come back in a moment.'],
  noFolder: ['Open a folder first', 'Cantrip works in a folder: it sees the files in it.'],
  untrusted: ['This workspace is not trusted', 'Cantrip does not start here, because it would read and act on what is in this folder. Trust the workspace to chat.'],
  setUp: ['Set up Cantrip', 'It comes with this extension and gets a Python environment of its own. That takes about a minute.'],
  settingUp: ['Setting up Cantrip', 'This happens once.'],
  signIn: ['Choose a model', 'Cantrip needs a model: one of a provider whose key you have, or one of this machine.'],
} as const

let shownEmpty = ''

/** When the set-up that is shown began. */
let doingSince = 0
const DOUBLE_CLICK_MS = 700

function showEmpty(state: State): void {
  const { setUp, problem } = state
  // Progress comes often: what does not change keeps the focus.
  const now = JSON.stringify([state.status, state.caution, problem, setUp])
  if (now === shownEmpty) return
  shownEmpty = now
  const doing = setUp?.doing
  const wants = state.status === 'ready' ? problem : undefined
  const [title, words] = EMPTY[doing !== undefined ? 'settingUp' : wants?.action === 'signIn' ? 'signIn' : state.status]
  const action = (label: string, type: 'openFolder' | 'trust' | 'setUp' | 'cancelSetUp' | 'otherSetUp' | 'signIn', kind = 'primary'): HTMLElement =>
    el('button', { class: kind, type: 'button', onclick: () => {
      // The second click of a double click on Set Up meets Cancel in its place.
      if (type !== 'cancelSetUp' || Date.now() - doingSince > DOUBLE_CLICK_MS) host.postMessage({ type })
    } }, label)
  const tip = (key: string, what: string): HTMLElement => el('li', {}, el('kbd', {}, key), ' ', what)
  const why = setUp?.problem ?? (state.status === 'setUp' ? problem?.detail : '')
  if (doing === undefined) doingSince = 0
  else if (doingSince === 0) doingSince = Date.now()
  if (doing !== undefined) announce(doing)
  if (wants !== undefined && wants.action !== 'signIn') {
    empty.replaceChildren(error({ type: 'error', id: 'start', ...wants }))
    return
  }
  empty.replaceChildren(
    icon(doing !== undefined ? 'loading codicon-modifier-spin' : state.status === 'setUp' ? 'tools' : wants !== undefined ? 'key' : 'sparkle', 'big'),
    el('h2', {}, title),
    el('p', {}, words),
    ...(doing !== undefined ? [el('p', { class: 'doing' }, `${doing.charAt(0).toUpperCase()}${doing.slice(1)}…`), action('Cancel', 'cancelSetUp', 'secondary')] : []),
    ...(state.status === 'setUp' && doing === undefined
      ? [...(why ? [el('p', { class: 'why', role: 'alert' }, why)] : []), action(setUp?.problem === undefined ? 'Set Up Cantrip' : 'Try Again', 'setUp'), action('Other Ways…', 'otherSetUp', 'text-button')]
      : []),
    ...(state.status === 'noFolder' ? [action('Open Folder', 'openFolder')] : []),
    ...(state.status === 'untrusted' ? [action('Manage Workspace Trust', 'trust')] : []),
    ...(wants !== undefined ? [action('Choose a Model…', 'signIn')] : []),
    ...(state.status === 'ready' && wants === undefined
      ? [
          ...(state.caution ? [el('p', { class: 'caution' }, icon('warning'), ' ', state.caution)] : []),
          el('ul', { class: 'tips' }, tip('@', 'adds files, symbols, problems, the terminal, changes'), tip('/', 'lists the commands'), tip('↑', 'brings back your last message'), tip('Esc', 'stops Cantrip'), tip('Ctrl+Alt+M', 'asks before each change, or not')),
        ]
      : []),
  )
}

function showPlan(state: State): void {
  plan.hidden = state.plan.length === 0
  if (state.running !== running) plan.open = state.running
  const done = state.plan.filter((entry) => entry.status === 'completed').length
  const now = state.plan.find((entry) => entry.status === 'in_progress')
  const sign = { completed: 'pass-filled', in_progress: 'arrow-circle-right', pending: 'circle-large' } as const
  plan.replaceChildren(
    el('summary', {}, icon('chevron-right', 'chevron'), el('span', { class: 'title' }, now ? now.content : 'Plan'), el('span', { class: 'count' }, `${done}/${state.plan.length}`)),
    el(
      'ul',
      {},
      ...state.plan.map((entry) => {
        const name = entry.status in sign ? sign[entry.status as keyof typeof sign] : 'circle-large'
        return el('li', { class: entry.status }, icon(name), el('span', { class: 'hidden-words' }, entry.status.replace('_', ' ')), el('span', {}, entry.content))
      }),
    ),
  )
}

function setState(state: State): void {
  if (running && !state.running) {
    log.finish()
    announce('Cantrip has finished')
  }
  const chosen = state.options.find((option) => option.category === 'mode')
  const name = chosen?.values.find((value) => value.value === chosen.value)?.name ?? ''
  if (state.session !== '' && state.session === session && name !== mode) announce(`Mode: ${name}`)
  session = state.session
  document.body.dataset['session'] = session
  mode = name
  showPlan(state)
  running = state.running
  log.running = running
  document.body.classList.toggle('running', running)
  document.body.classList.toggle('stops-calls', state.stopsCalls === true)
  if (state.now !== undefined) clock.ahead = state.now - Date.now()
  document.body.classList.toggle('opening', state.status === 'opening')
  composer.set(state)
  queue.set(state.queue)
  changed.setRunning(running)
  showEmpty(state)
}

window.addEventListener('message', (event: MessageEvent<HostMessage>) => {
  const message = event.data
  switch (message.type) {
    case 'reset':
      if (!message.same) composer.stopEditing()
      log.running = message.state.running
      log.reset({ first: message.first ?? 0, items: message.items, total: message.total ?? message.items.length }, message.state.session, message.same)
      setState(message.state)
      return
    case 'ops':
      for (const op of message.ops) {
        log.apply(op)
        if (op.op === 'add' && op.item.type === 'form' && op.item.question) announce(`Cantrip asks: ${plainQuestion(op.item)} Alt A goes to the question, Alt R skips it.`)
        if (op.op !== 'set' || op.item.type !== 'tool' || !op.item.question) continue
        const { id } = op.item.question
        // A call may be updated while its question is open.
        if (!asked.has(id)) announce(`Cantrip asks: ${questionText(op.item)} ${op.item.title}. Alt A allows, Alt R rejects.`)
        asked.add(id)
      }
      log.afterApply()
      return
    case 'items':
      log.receive(message.ask, message)
      return
    case 'state':
      setState(message.state)
      return
    case 'sessions':
      sessions.set(message.sessions, message.problem ?? '')
      return
    case 'showSessions':
      servers.hide()
      sessions.show()
      return
    case 'showServers':
      servers.show()
      return
    case 'servers':
      servers.set(message.servers, message.problem ?? '')
      return
    case 'mentions':
      composer.completion.found(message.ask, message.found, message.note)
      return
    case 'found':
      find.found(message.ask, message.items)
      return
    case 'attach':
      if (message.add === true) composer.add(message.attachments, message.text ?? '')
      else composer.attach(message.attachments, message.text)
      return
    case 'changes':
      changed.set(message.files, message.canRedo)
      return
    case 'picture':
      pictureFound(message.ask, message.data)
      return
    case 'reveal':
      log.reveal(message.item, message.index, message.step)
      return
    case 'focus':
      composer.focus()
      return
  }
})

window.addEventListener('keydown', (event) => {
  if (event.code === 'KeyF' && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
    event.preventDefault()
    find.open()
    return
  }
  const kind = event.altKey && !event.ctrlKey ? { KeyA: 'allow_once', KeyR: 'reject_once' }[event.code] : undefined
  if (kind && log.asksUnseen) {
    event.preventDefault()
    log.showQuestion()
    return
  }
  // The first question that has no answer yet.
  const question = kind === undefined ? undefined : [...document.querySelectorAll<HTMLElement>('.question')].find((each) => each.querySelector('button[data-kind]:not(:disabled)'))
  const button = question?.querySelector<HTMLButtonElement>(`button[data-kind="${kind}"]:not(:disabled)`)
  if (kind === 'allow_once' && question?.matches('.form-question') === true) {
    event.preventDefault()
    log.showQuestion()
    enterForm(question)
  } else if (button) {
    event.preventDefault()
    // The first key press shows a question that is out of sight, because nobody answers what they do not see.
    if (!log.showQuestion()) return
    button.click()
    composer.focus()
  } else if (event.key === 'Escape' && running && !event.defaultPrevented) {
    host.postMessage({ type: 'stop' })
  }
})

document.getElementById('chat')?.append(el('div', { class: 'log-frame' }, log.element, log.toEndButton, find.element, sessions.element, servers.element), plan, changed.element, queue.element, composer.element, live)
window.setInterval(tick, 1000)
host.postMessage({ type: 'ready' })
