// The types of 1.30 lack these two fields of a rule.
import type {} from 'kubernetes-types/admissionregistration/v1';

declare module 'kubernetes-types/admissionregistration/v1' {
  interface NamedRuleWithOperations {
    resources?: string[];
    scope?: string;
  }
}
