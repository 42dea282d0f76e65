#include "loss/schema.hpp"

#include "bench/json.hpp"
#include "bench/schema.hpp"

namespace tutti::tool {
namespace {

constexpr std::string_view config = R"json({
  "type": "object",
  "required": ["losses", "rows", "classes", "dtype", "seed", "queue", "calls", "rounds", "tolerance", "split", "layout"],
  "additionalProperties": false,
  "properties": {
    "losses": {"type": "array", "items": {"$ref": "#/$defs/loss"}},
    "rows": {"type": "integer", "minimum": 1, "description": "of a call, all ranks together"},
    "classes": {"type": "integer", "minimum": 1},
    "pos_rate": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "ignore_rate": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    "dtype": {"enum": ["f32", "f64"]},
    "seed": {"type": "integer", "minimum": 0},
    "temperature": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "null: each loss has its own"},
    "quantile": {"type": "number"},
    "budget": {"type": "number"},
    "surrogate": {"enum": ["trapezoid", "pairwise"]},
    "gamma": {"type": "number", "minimum": 0},
    "queue": {"type": "integer", "minimum": 0},
    "threads": {"type": "integer", "minimum": 1, "description": "of smooth_ap, on each rank"},
    "calls": {"type": "integer", "minimum": 1, "description": "in a row, whose numbers are compared"},
    "rounds": {"type": "integer", "minimum": 1, "description": "further calls, that are timed"},
    "tolerance": {"type": "number", "minimum": 0},
    "split": {"enum": ["even", "uneven", "one"]},
    "layout": {"type": "array", "items": {"type": "integer", "minimum": 0}, "description": "rows of each rank"},
    "timeout_s": {"type": "number"}
  }
})json";

constexpr std::string_view result = R"json({
  "type": "object",
  "required": ["loss", "value", "gradient_norm", "difference", "wrong", "worst", "time_us", "time_us_one_process",
               "evaluations", "evaluations_one_process", "peak_extra_bytes", "peak_extra_bytes_one_process", "pair_loop"],
  "additionalProperties": false,
  "properties": {
    "loss": {"$ref": "#/$defs/loss"},
    "temperature": {"type": ["number", "null"], "description": "null where the loss has none"},
    "value": {"type": ["number", "null"], "description": "of the last compared call; null when not finite"},
    "gradient_norm": {"type": ["number", "null"], "description": "over the rows of all ranks, of the same call"},
    "valid_classes": {"type": ["integer", "null"], "minimum": 0, "description": "null where the loss has none"},
    "queued": {"type": ["integer", "null"], "minimum": 0, "description": "rows in the queue after the compared calls; null where the loss has none"},
    "difference": {
      "type": "object",
      "description": "the largest from one process over ranks and calls; null when not finite",
      "required": ["loss", "gradient"],
      "additionalProperties": false,
      "properties": {
        "loss": {"type": ["number", "null"], "minimum": 0, "description": "relative to the loss, or to 1 where that is more"},
        "gradient": {"type": ["number", "null"], "minimum": 0, "description": "relative to the largest element"}
      }
    },
    "wrong": {"type": "integer", "minimum": 0, "description": "losses and gradient elements beyond the tolerance, on all ranks"},
    "worst": {
      "type": ["object", "null"],
      "required": ["rank", "call", "array", "index", "expected", "got"],
      "additionalProperties": false,
      "properties": {
        "rank": {"type": "integer", "minimum": 0},
        "call": {"type": "integer", "minimum": 0},
        "array": {"enum": ["loss", "gradient"]},
        "index": {"type": "integer", "minimum": 0, "description": "of the element in [rows, classes]"},
        "expected": {"type": "string"},
        "got": {"type": "string"}
      }
    },
    "time_us": {"$ref": "#/$defs/time", "description": "of the ranks together; of a round the slowest rank's"},
    "time_us_one_process": {"$ref": "#/$defs/time"},
    "evaluations": {"type": "array", "items": {"type": "integer", "minimum": 0}, "description": "of each rank in a call: values of the sigmoid of pairs, or of series that stand for them"},
    "evaluations_one_process": {"type": "integer", "minimum": 0},
    "peak_extra_bytes": {"type": ["integer", "null"], "minimum": 0, "description": "resident memory of the process that took most during a call; of all ranks together where they are threads; null when unknown"},
    "peak_extra_bytes_one_process": {"type": ["integer", "null"], "minimum": 0},
    "pair_loop": {
      "type": ["object", "null"],
      "description": "the plain loop over pairs of rows on one thread; null for losses that are not of pairs",
      "required": ["time_us", "estimated", "speedup"],
      "additionalProperties": false,
      "properties": {
        "time_us": {"type": "number", "minimum": 0},
        "estimated": {"type": "boolean", "description": "from a part of the anchors: all would take over a second"},
        "speedup": {"type": "number", "minimum": 0, "description": "of one process over the loop"}
      }
    }
  }
})json";

constexpr std::string_view definitions = R"json({
  "loss": {"enum": ["smooth_ap", "recall_at_quantile", "p_auc_at_budget", "cross_entropy", "sigmoid_focal", "softmax_focal"]},
  "time": {
    "type": "object",
    "required": ["n", "p50", "min", "max"],
    "additionalProperties": false,
    "properties": {
      "n": {"type": "integer", "minimum": 1},
      "p50": {"type": "number"},
      "min": {"type": "number"},
      "max": {"type": "number"}
    }
  }
})json";

}  // namespace

std::string loss_schema() {
  // What every run has is said once, in the schema of bench.
  Json whole = Json::parse(schema());
  whole["$id"] = "tutti/loss-run-1";
  whole["title"] = "A run of tutti loss";
  Json& properties = whole["properties"];
  properties["config"] = Json::parse(config);
  properties["results"] = {{"type", "array"}, {"items", Json::parse(result)}};
  properties.erase("fit");
  properties.erase("gates");
  whole["$defs"] = Json::parse(definitions);
  return dump(whole, 2) + "\n";
}

}  // namespace tutti::tool
