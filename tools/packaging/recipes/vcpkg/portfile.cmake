# vcpkg, as an overlay port (--overlay-ports=tools/packaging/recipes/vcpkg). Tried: its version and options are compared with
# the sources. Not tried: a build, because vcpkg downloads its dependencies.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)
vcpkg_configure_meson(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -Dtool=disabled -Dtests=disabled -Dexamples=disabled -Dcuda=none -Dbackends=local,shm,tcp,hier)
vcpkg_install_meson()
vcpkg_fixup_pkgconfig()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/tutti)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
