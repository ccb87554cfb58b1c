# Headers, libraries, pkg-config file and CMake package.

install(TARGETS fsdp_static fsdp_shared EXPORT fsdp-targets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fsdp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# The package may be moved: its paths start from where fsdp.pc lies.
file(RELATIVE_PATH FSDP_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(FSDP_PC_PRIVATE "${DNNL_LIBRARY} -lm -lpthread")
if(FSDP_OPENMP)
  string(APPEND FSDP_PC_PRIVATE " ${OpenMP_C_FLAGS}")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/fsdp.pc.in fsdp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fsdp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fsdp-config.cmake.in fsdp-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(fsdp-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fsdp-config.cmake ${PROJECT_BINARY_DIR}/fsdp-config-version.cmake
        DESTINATION ${package_dir})
install(EXPORT fsdp-targets NAMESPACE fsdp:: DESTINATION ${package_dir})
