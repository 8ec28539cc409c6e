# GPU kernels on fibers, against the CPU's; and whether these tests find faults.
if(NOT TARGET edge_rt_gpu_provider)
  return()
endif()

file(GLOB gpu_launches CONFIGURE_DEPENDS ../ops/*/*_gpu.cc)
add_library(gpu_test_parts OBJECT gpu_attention_cases.cc gpu_attention_run.cc gpu_linear_cases.cc gpu_row_cases.cc gpu_tables.cc
                                  golden_bits.cc golden_inputs.cc golden_ops.cc golden_run.cc golden_states.cc gpu_golden.cc
                                  golden_experts.cc golden_node.cc gpu_experts_run.cc fake_ort.cc fake_memory.cc
                                  ../register.cc ../ops/experts/experts_job_gpu_op.cc
                                  ${gpu_launches})
target_link_libraries(gpu_test_parts PUBLIC edge_rt_flags)
target_compile_definitions(gpu_test_parts PUBLIC ${isa_definitions})

# A program of a source; kernels are a library's, or the source includes its own.
function(add_gpu_program name)
  add_executable(${name} ${ARGN} emulator/simt.cc)
  target_link_libraries(${name} PRIVATE gpu_test_parts edge_rt_base edge_rt_kernels)
endfunction()

set(golden_bits "${CMAKE_CURRENT_SOURCE_DIR}/golden_bits.txt")
foreach(name gpu_attention gpu_linear gpu_golden)
  add_gpu_program(${name}_test ${name}_main.cc)
  target_link_libraries(${name}_test PRIVATE edge_rt_gpu_fiber_kernels)
endforeach()
foreach(name gpu_attention gpu_linear)
  add_test(NAME ${name}_test COMMAND ${name}_test)
  add_test(NAME ${name}_out_of_bounds COMMAND ${name}_test out_of_bounds)
endforeach()
add_test(NAME gpu_golden_shard COMMAND gpu_golden_test "${golden_bits}" 3 --shard 39/40 --verbose)
add_test(NAME gpu_golden_no_shard COMMAND gpu_golden_test "${golden_bits}" --shard 40/40)
set_tests_properties(gpu_golden_no_shard PROPERTIES WILL_FAIL TRUE)

# All golden bits by way of a driver, which is the test; gpu_golden_test draws other orders of fibers, see .ci/gpu.
# The first needs a GPU: no test of this build.
add_gpu_program(gpu_golden_device gpu_golden_device_main.cc gpu_device_launcher.cc gpu_pinned_heap.cc)
target_link_libraries(gpu_golden_device PRIVATE edge_rt_gpu_cuda edge_rt_gpu_cuda_driver ${CMAKE_DL_LIBS})
add_executable(gpu_golden_emulated gpu_golden_device_main.cc gpu_device_launcher.cc gpu_pinned_heap.cc)
target_link_libraries(gpu_golden_emulated PRIVATE gpu_test_parts edge_rt_base edge_rt_kernels edge_rt_gpu_cuda
                                                  edge_rt_gpu_emulated edge_rt_gpu_fiber_kernels)
# The same by Vulkan: gpu_golden_vulkan <golden bits> <folder of tools/spirv.py --out>.
add_gpu_program(gpu_golden_vulkan gpu_golden_device_main.cc gpu_device_launcher.cc gpu_pinned_heap.cc)
target_link_libraries(gpu_golden_vulkan PRIVATE edge_rt_gpu_vulkan ${CMAKE_DL_LIBS})
foreach(name gpu_linear gpu_attention gpu_states)
  add_gpu_program(${name}_vulkan ${name}_device_main.cc gpu_device_launcher.cc gpu_pinned_heap.cc)
  target_link_libraries(${name}_vulkan PRIVATE edge_rt_gpu_vulkan ${CMAKE_DL_LIBS})
endforeach()
add_gpu_program(gpu_held_vulkan gpu_held_main.cc gpu_device_launcher.cc gpu_pinned_heap.cc)
target_link_libraries(gpu_held_vulkan PRIVATE edge_rt_gpu_vulkan ${CMAKE_DL_LIBS})

# Structs of Vulkan kernels against those of C++: a test that is over when it compiles.
file(GLOB spirv CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/ops/*/vulkan/spirv/*.spv)
find_package(Python3 3.11 COMPONENTS Interpreter)
if(spirv AND Python3_FOUND)
  set(struct_checks "${CMAKE_CURRENT_BINARY_DIR}/structs/vulkan_structs.inl")
  set(struct_reader "${PROJECT_SOURCE_DIR}/tools/vulkan_structs.py")
  add_custom_command(OUTPUT "${struct_checks}" DEPENDS ${spirv} "${struct_reader}"
                     COMMAND ${CMAKE_COMMAND} -E make_directory "${CMAKE_CURRENT_BINARY_DIR}/structs"
                     COMMAND Python3::Interpreter -B "${struct_reader}" ${spirv} > "${struct_checks}")
  add_library(vulkan_structs OBJECT vulkan_structs.cc "${struct_checks}")
  target_include_directories(vulkan_structs PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/structs")
  target_link_libraries(vulkan_structs PRIVATE edge_rt_flags)
  target_compile_options(vulkan_structs PRIVATE -Wno-invalid-offsetof)  # of structs that derive from another
endif()

# The first has a heap of its own, where AddressSanitizer has another. Crashes are what the others are about:
# AddressSanitizer takes them for faults of its own.
if(NOT EDGE_RT_SANITIZE)
  add_test(NAME gpu_golden_emulated COMMAND gpu_golden_emulated "${golden_bits}" "${golden_bits}")
  # What takes longest begins first.
  set_tests_properties(gpu_golden_emulated PROPERTIES COST 30)
  foreach(name gpu_attention_faults gpu_linear_faults)
    add_gpu_program(${name} ${name}.cc gpu_faults.cc)
    add_test(NAME ${name} COMMAND ${name} short)
  endforeach()
endif()
