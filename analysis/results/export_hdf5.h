// Results as HDF5: a group per metric, in it a dataset per array ("<array>", float64, NaN where a
// cell has no terms) and its terms ("<array>_terms", int64), with the axes as dimension scales, so
// that xarray.open_dataset(path, group="similarity") shows them by name. Where two arrays of a
// metric have an axis of the same name with different elements, the later one's is called
// "<axis>_of_<array>".
#pragma once

#include "analysis/results/analysis_document.h"
#include "decode_record/files/output_file.h"

namespace blockscope {

/// Writes the whole content of `output`. Throws TraceError when it can't.
void write_hdf5(const AnalysisDocument& document, const OutputFile& output);

}  // namespace blockscope
