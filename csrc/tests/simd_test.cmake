# The test of the 16-lane types: one program that holds every instruction set's, each compiled with its own flags.
set(simd_header_scalar simd_scalar.h)
set(simd_header_avx2 simd_avx2.h)
set(simd_header_avx_vnni simd_avx2.h)
set(simd_header_avx512_vnni simd_avx512.h)
set(simd_header_neon_dotprod simd_neon.h)
set(simd_header_neon_i8mm simd_neon.h)

add_executable(simd_test simd_main.cc simd_nibbles.cc)
target_link_libraries(simd_test PRIVATE edge_rt_base edge_rt_kernels)
foreach(isa IN LISTS isas)
  string(TOUPPER "${isa}" upper)
  if(NOT "EDGE_RT_HAS_${upper}" IN_LIST isa_definitions)
    continue()
  endif()
  set(source "${CMAKE_CURRENT_BINARY_DIR}/simd_test_${isa}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#define EDGE_RT_ISA_NAMESPACE ${isa}
#include \"kernels/${simd_header_${isa}}\"
#include \"tests/simd_test.inl\"
")
  set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS "${isa_flags_${isa}}")
  target_sources(simd_test PRIVATE "${source}")
endforeach()
add_test(NAME simd_test COMMAND simd_test)
