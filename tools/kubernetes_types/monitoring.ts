// What deploy/kubernetes uses of the Prometheus operator's own kinds.
import type { ObjectMeta, LabelSelector } from 'kubernetes-types/meta/v1';

export interface PodMonitor {
  apiVersion: 'monitoring.coreos.com/v1';
  kind: 'PodMonitor';
  metadata: ObjectMeta;
  spec: {
    jobLabel?: string;
    selector: LabelSelector;
    podMetricsEndpoints: {
      port: string;
      path?: string;
      interval?: string;
      scrapeTimeout?: string;
      relabelings?: { sourceLabels?: string[]; targetLabel?: string; regex?: string; replacement?: string;
                      action?: string }[];
    }[];
  };
}

interface Recording { record: string; expr: string; labels?: Record<string, string> }
interface Alert {
  alert: string;
  expr: string;
  for?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
}

export interface PrometheusRule {
  apiVersion: 'monitoring.coreos.com/v1';
  kind: 'PrometheusRule';
  metadata: ObjectMeta;
  spec: { groups: { name: string; interval?: string; rules: (Recording | Alert)[] }[] };
}
