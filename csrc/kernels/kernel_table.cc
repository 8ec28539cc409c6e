#include "kernels/kernel_table.h"

namespace edge_rt {

// One per instruction set that the files beside this one are compiled for.
namespace scalar {
extern const KernelTable kTable;
}
#ifdef EDGE_RT_HAS_AVX2
namespace avx2 {
extern const KernelTable kTable;
}
#endif
#ifdef EDGE_RT_HAS_AVX_VNNI
namespace avx_vnni {
extern const KernelTable kTable;
}
#endif
#ifdef EDGE_RT_HAS_AVX512_VNNI
namespace avx512_vnni {
extern const KernelTable kTable;
}
#endif
#ifdef EDGE_RT_HAS_NEON_DOTPROD
namespace neon_dotprod {
extern const KernelTable kTable;
}
#endif
#ifdef EDGE_RT_HAS_NEON_I8MM
namespace neon_i8mm {
extern const KernelTable kTable;
}
#endif

const KernelTable& kernel_table(Isa isa) {
  switch (isa) {
#ifdef EDGE_RT_HAS_AVX2
    case Isa::kAvx2: return avx2::kTable;
#endif
#ifdef EDGE_RT_HAS_AVX_VNNI
    case Isa::kAvxVnni: return avx_vnni::kTable;
#endif
#ifdef EDGE_RT_HAS_AVX512_VNNI
    case Isa::kAvx512Vnni: return avx512_vnni::kTable;
#endif
#ifdef EDGE_RT_HAS_NEON_DOTPROD
    case Isa::kNeonDotprod: return neon_dotprod::kTable;
#endif
#ifdef EDGE_RT_HAS_NEON_I8MM
    case Isa::kNeonI8mm: return neon_i8mm::kTable;
#endif
    default: return scalar::kTable;
  }
}

}  // namespace edge_rt
