// Package config loads the configuration of the commands: [Load] reads flags, environment
// and a YAML file, checks every value and finds the cluster. The methods of [Config] are the
// configurations of the bridge, the services and the connection to NATS.
//
//	flags ───────┐
//	APPBRIDGE_… ─┼─► settings: option → text, source ─► table: parse, check ─► Config
//	YAML file ───┘                                            └─► every problem, one line each
//
// Two things are our own, although libraries offer something near:
//
//   - One table of options (table.go). Flags, variables, keys, help text, shell completion
//     and docs/configuration.md are made from it, so that they cannot differ, and all sources
//     parse a value in the same way.
//   - Every wrong value is reported at once, with the option, the source and what is allowed.
//     A bridge is configured by a Deployment: one error for each restart costs minutes each.
//     pflag stops at the first wrong flag, and the YAML decoder reports no other problem of a
//     file with a repeated key; so flags are parsed again after each error, and the file's
//     keys are read in their order.
//
// No value of a secret is part of an error: URLs, seeds and variables of apps are redacted.
package config
