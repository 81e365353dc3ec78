// What a dashboard may hold, from Grafana's own schema: each kind of panel with its own options and field
// configuration. The schema leaves both open ("any record"); here they are closed, so that a key that Grafana does not
// know is an error.
import type * as schema from '@grafana/schema';
import type * as bargauge from '@grafana/schema/dist/types/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type * as gauge from '@grafana/schema/dist/types/raw/composable/gauge/panelcfg/x/GaugePanelCfg_types.gen';
import type * as heatmap from '@grafana/schema/dist/types/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as histogram from '@grafana/schema/dist/types/raw/composable/histogram/panelcfg/x/HistogramPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as statetimeline from '@grafana/schema/dist/types/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as statushistory from '@grafana/schema/dist/types/raw/composable/statushistory/panelcfg/x/StatusHistoryPanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/types/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as text from '@grafana/schema/dist/types/raw/composable/text/panelcfg/x/TextPanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// A type as JSON has it: the values of an enum in place of its names. Grafana fills in what is missing, so with `Some`
// every key of it and below may be missing.
type NumberOf<T> = T extends number ? (`${T}` extends `${infer N extends number}` ? N : never) : never;
type Plain<T> = T extends string ? `${T}` : T extends number ? NumberOf<T> : T extends boolean | null | undefined ? T
    : T extends Array<infer E> ? Array<Plain<E>> : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
type Some<T> = T extends Array<infer E> ? Array<Some<E>> : T extends object ? { [K in keyof T]?: Some<T[K]> } : T;

interface DataSource {
  type: 'prometheus';
  uid: '${datasource}';
}

// The schema leaves queries to the data sources.
interface Target extends Pick<schema.DataQuery, 'refId' | 'hide'> {
  datasource: DataSource;
  expr: string;
  legendFormat?: string;
  instant?: boolean;
  range?: boolean;
  format?: 'time_series' | 'table' | 'heatmap';
  interval?: string;
}

interface Fields<Custom> {
  defaults: Plain<Omit<schema.FieldConfig, 'custom'>> & { custom?: Some<Plain<Custom>> };
  overrides: Plain<schema.FieldConfigSource['overrides']>;
}

interface PanelOf<Type extends string, Options, Custom>
    extends Plain<Omit<schema.Panel, 'type' | 'options' | 'fieldConfig' | 'targets' | 'datasource'>> {
  type: Type;
  title: string;
  description: string;
  datasource: DataSource;
  options: Some<Plain<Options>>;
  fieldConfig: Fields<Custom>;
  targets: Target[];
}

type None = Record<string, never>;

export interface Panels {
  bargauge: PanelOf<'bargauge', bargauge.Options, None>;
  gauge: PanelOf<'gauge', gauge.Options, None>;
  heatmap: PanelOf<'heatmap', heatmap.Options, heatmap.FieldConfig>;
  histogram: PanelOf<'histogram', histogram.Options, histogram.FieldConfig>;
  stat: PanelOf<'stat', stat.Options, None>;
  'state-timeline': PanelOf<'state-timeline', statetimeline.Options, statetimeline.FieldConfig>;
  'status-history': PanelOf<'status-history', statushistory.Options, statushistory.FieldConfig>;
  table: PanelOf<'table', table.Options, schema.TableFieldOptions>;
  text: PanelOf<'text', text.Options, None>;
  timeseries: PanelOf<'timeseries', timeseries.Options, timeseries.FieldConfig>;
}

// Of Prometheus, beside what every annotation has.
type Annotation = Plain<Omit<schema.AnnotationQuery, 'target' | 'snapshotData' | 'datasource'>> & {
  datasource: DataSource;
  expr: string;
  step?: string;
  titleFormat?: string;
  textFormat?: string;
  tagKeys?: string;
};

type Variable = Plain<Omit<schema.VariableModel, 'datasource' | 'query'>> & {
  datasource?: DataSource;
  definition?: string;
  query?: string | { query: string; refId: string };
};

// All but the panels, which are checked one by one.
export interface Board extends Plain<Omit<schema.Dashboard, 'panels' | 'templating' | 'annotations'>> {
  title: string;
  uid: string;
  templating: { list: Variable[] };
  annotations: { list: Annotation[] };
}

// That this catches anything: each of these must be an error, and tsc complains when it is none.
const query: Target = { refId: 'A', expr: 'up', datasource: { type: 'prometheus', uid: '${datasource}' } };
const fine: Panels['stat'] = {
  type: 'stat', title: 't', description: 'd', datasource: query.datasource, targets: [query],
  options: { colorMode: 'value' }, fieldConfig: { defaults: { unit: 's' }, overrides: [] },
};
export const wrong = {
  // @ts-expect-error a key that no panel has
  key: { ...fine, sorting: true } satisfies Panels['stat'],
  // @ts-expect-error an option of another kind of panel
  option: { ...fine, options: { mergeValues: true } } satisfies Panels['stat'],
  // @ts-expect-error a value that the option does not have
  value: { ...fine, options: { colorMode: 'sparkling' } } satisfies Panels['stat'],
  // @ts-expect-error a misspelt key far below
  below: { ...fine, options: { reduceOptions: { calc: ['last'] } } } satisfies Panels['stat'],
  // @ts-expect-error a number as text
  number: { ...fine, gridPos: { h: '8', w: 12, x: 0, y: 0 } } satisfies Panels['stat'],
  // @ts-expect-error a field that is misspelt
  field: { ...fine, fieldConfig: { defaults: { units: 's' }, overrides: [] } } satisfies Panels['stat'],
  // @ts-expect-error a query without its expression
  query: { ...fine, targets: [{ refId: 'A', datasource: query.datasource }] } satisfies Panels['stat'],
};
