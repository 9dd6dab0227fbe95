import mermaid from 'mermaid'

/** The colours and the font of the page, as six hexadecimal digits. */
export interface Look {
  readonly dark: boolean
  readonly ground: string
  readonly text: string
  readonly quiet: string
  readonly fill: string
  readonly border: string
  readonly raised: string
  /** Colours of parts that differ. The text is readable on them. */
  readonly parts: readonly string[]
  readonly font: string
  readonly size: number
}

const MOST_TEXT = 50_000
const MOST_EDGES = 200

// Nothing in the text of a diagram changes a setting: not the level of security, nor a theme's styles, nor a layout.
// eslint-disable-next-line @typescript-eslint/no-deprecated -- the only place that lists all settings
const FIXED = Object.keys(mermaid.mermaidAPI.defaultConfig)

function numbered(name: string, colours: readonly string[], first: number, count: number): Record<string, string> {
  return Object.fromEntries(Array.from({ length: count }, (_, at) => [`${name}${at + first}`, colours[at % colours.length] ?? '#808080']))
}

/** Draw a diagram in a hidden element of the page, and return it as SVG. The text is untrusted. Raises an error if it is not understood. */
export async function draw(text: string, id: string, look: Look, place: HTMLElement): Promise<string> {
  const { ground, text: ink, quiet, fill, border, raised, parts } = look
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: 'strict',
    secure: [...FIXED, 'secure'],
    suppressErrorRendering: true,
    deterministicIds: true,
    deterministicIDSeed: id,
    maxTextSize: MOST_TEXT,
    maxEdges: MOST_EDGES,
    htmlLabels: false,
    flowchart: { htmlLabels: false, useMaxWidth: false },
    sequence: { useMaxWidth: false },
    gantt: { useMaxWidth: false, axisFormat: '%m-%d' },
    layout: 'dagre',
    look: 'classic',
    theme: 'base',
    fontFamily: look.font,
    fontSize: look.size,
    logLevel: 'fatal',
    themeVariables: {
      darkMode: look.dark,
      background: ground,
      fontFamily: look.font,
      fontSize: `${look.size}px`,
      primaryColor: fill,
      primaryTextColor: ink,
      primaryBorderColor: border,
      secondaryColor: raised,
      secondaryTextColor: ink,
      secondaryBorderColor: border,
      tertiaryColor: raised,
      tertiaryTextColor: ink,
      tertiaryBorderColor: border,
      mainBkg: fill,
      nodeBorder: border,
      lineColor: quiet,
      arrowheadColor: quiet,
      textColor: ink,
      titleColor: ink,
      nodeTextColor: ink,
      edgeLabelBackground: ground,
      clusterBkg: raised,
      clusterBorder: border,
      noteBkgColor: raised,
      noteTextColor: ink,
      noteBorderColor: border,
      actorLineColor: border,
      signalColor: quiet,
      signalTextColor: ink,
      labelTextColor: ink,
      loopTextColor: ink,
      activationBkgColor: raised,
      activationBorderColor: border,
      sequenceNumberColor: ground,
      sectionBkgColor: raised,
      altSectionBkgColor: ground,
      sectionBkgColor2: raised,
      taskBkgColor: parts[0],
      taskBorderColor: border,
      taskTextColor: ink,
      taskTextLightColor: ink,
      taskTextDarkColor: ink,
      taskTextOutsideColor: ink,
      taskTextClickableColor: ink,
      activeTaskBkgColor: parts[1],
      activeTaskBorderColor: border,
      doneTaskBkgColor: raised,
      doneTaskBorderColor: border,
      critBkgColor: parts[4],
      critBorderColor: border,
      gridColor: border,
      todayLineColor: quiet,
      rowOdd: ground,
      rowEven: raised,
      attributeBackgroundColorOdd: ground,
      attributeBackgroundColorEven: raised,
      pieStrokeColor: border,
      pieOuterStrokeColor: border,
      pieTitleTextColor: ink,
      pieSectionTextColor: ink,
      pieLegendTextColor: ink,
      pieOpacity: '1',
      ...numbered('pie', parts, 1, 12),
      ...numbered('cScale', parts, 0, 12),
      ...numbered('cScaleLabel', [ink], 0, 12),
      ...numbered('fillType', parts, 0, 8),
      ...numbered('git', parts, 0, 8),
      ...numbered('gitBranchLabel', [ink], 0, 8),
      commitLabelColor: ink,
      commitLabelBackground: ground,
      tagLabelColor: ink,
      tagLabelBackground: raised,
      tagLabelBorder: border,
      quadrant1Fill: raised,
      quadrant2Fill: ground,
      quadrant3Fill: raised,
      quadrant4Fill: ground,
      quadrantPointFill: quiet,
      xyChart: { backgroundColor: ground, titleColor: ink, xAxisLabelColor: ink, xAxisTitleColor: ink, xAxisTickColor: border, xAxisLineColor: border, yAxisLabelColor: ink, yAxisTitleColor: ink, yAxisTickColor: border, yAxisLineColor: border, plotColorPalette: parts.join(',') },
    },
  })
  return (await mermaid.render(id, text, place)).svg
}
