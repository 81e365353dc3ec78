// Reads {policy, pods} from standard input, and prints for each pod the messages of the validations that refuse it.
import { evaluate } from '@marcbachmann/cel-js';
import { readFileSync } from 'node:fs';

const { policy, pods } = JSON.parse(readFileSync(0, 'utf8'));
console.log(JSON.stringify(pods.map((object) => {
  const variables = {};
  for (const variable of policy.spec.variables) {
    variables[variable.name] = evaluate(variable.expression, { object, variables });
  }
  return policy.spec.validations
    .filter((validation) => evaluate(validation.expression, { object, variables }) !== true)
    .map((validation) => validation.message);
})));
