// The kernels of an instruction set. The files beside this one (linear.cc, attention.cc, recurrent.cc) have them; the
// build compiles each once per instruction set, so that a change of one operator compiles little.
//
// What has kernels gets its line in one of these files, one in each of the two lists below, and a member in
// kernel_table.h.
#include "kernels/kernel_table.h"

namespace edge_rt::EDGE_RT_ISA_NAMESPACE {

extern const QuantLinearKernels kQuantLinear;
extern const QuantEmbedKernels kQuantEmbed;
extern const SpecAttentionKernels kSpecAttention;
extern const ShortConvKernels kShortConv;
extern const StateConvKernels kStateConv;
extern const GatedDeltaKernels kGatedDelta;
extern const SsmScanKernels kSsmScan;
extern const ExpertsKernels kExperts;
extern const RowTopKKernels kRowTopK;
extern const DraftHeadKernels kDraftHead;
extern const QuantiseKernels kQuantise;
extern const SamplingKernels kSampling;

extern const KernelTable kTable;
const KernelTable kTable{
    kQuantLinear, kQuantEmbed, kSpecAttention, kShortConv, kStateConv, kGatedDelta,
    kSsmScan,     kExperts,    kRowTopK,       kDraftHead, kQuantise,  kSampling,
};

}  // namespace edge_rt::EDGE_RT_ISA_NAMESPACE
