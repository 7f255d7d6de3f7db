// KLASS: a position takes its token when its confidence is high and its distribution is stable.
// Source: KLASS, arXiv 2511.05664; shkim0116/KLASS `src/model/llada_klass.py:
// stable_confident_decode`, alg "klass". Softmax and KL are float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace blockscope {

/// Which of several stable positions take their token (the authors' `unmask_strategy`): all of
/// them, the most confident one, or the one that moved least at this step.
enum class KlassChoose { kAll, kMaxConf, kMinKl };

inline const std::vector<std::string> kKlassChooseWords{"all", "max_conf", "min_kl"};

/// The history of each position's last steps, for one sequence. A bidirectional model also predicts
/// positions after its block, so their history continues from block to block, as in the authors'
/// code. A block-causal model predicts only its block, so each block begins anew.
class KlassMemory {
 public:
  /// Adds distributions [R, V] float64 of absolute `positions` [R] to the history. Returns
  /// KL(now || the step that predicted the position last) in nats; 1e-12 is added to both
  /// probabilities under the logarithm. Before a position's first step all probabilities count as
  /// 0, so its KL is about 27.6 nats minus the entropy. Distributions stay on their device; the
  /// host waits for the KLs.
  std::vector<double> update(const std::vector<int64_t>& positions, const at::Tensor& probability);

  /// Whether a position has been predicted before.
  bool known(int64_t position) const { return tracks_.contains(position); }

  /// Whether the position was predicted at `history` steps or more, with a KL below `threshold` at
  /// each of the last `history` ones.
  bool stable(int64_t position, double threshold, int64_t history) const;

  /// Deletes the history of positions before `begin`.
  void forget_before(int64_t begin);

 private:
  struct Track {
    at::Tensor before;       // [V] float64
    std::vector<double> kl;  // oldest first
  };
  std::map<int64_t, Track> tracks_;  // by position
};

/// Returns, ascending, the masked positions that are stable with `confidence` > `threshold`;
/// `choose` selects among them. If there are none, returns the `due` most confident masked ones.
/// Ties go to the lower position. `kl`: [B] of this step, as KlassMemory::update returned it; only
/// for kMinKl.
std::vector<int64_t> select_klass(const std::vector<double>& confidence,
                                  const std::vector<bool>& stable, const std::vector<bool>& masked,
                                  double threshold, int64_t due,
                                  KlassChoose choose = KlassChoose::kAll,
                                  const std::vector<double>& kl = {});

}  // namespace blockscope
