// What the types must refuse: otherwise they check nothing.
import type { Container, PodSpec } from 'kubernetes-types/core/v1';

// @ts-expect-error: no such field
export const misspelt: Container = { name: 'railsd', volumeMount: [] };
// @ts-expect-error: a number that is written as text
export const text: PodSpec = { containers: [], terminationGracePeriodSeconds: '660' };
// @ts-expect-error: a field of the container, not of the pod
export const misplaced: PodSpec = { containers: [], securityContext: { capabilities: { drop: ['ALL'] } } };
