"""No file of the packages depends on itself through others, in annotations and on demand either."""

import grimp
import networkx


def test_files_form_no_circle():
    packages = ("ddlib", "ddlib_models", "recipes")
    imports = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    graph = networkx.DiGraph(
        (module, imported)
        for module in imports.modules
        for imported in imports.find_modules_directly_imported_by(module)
    )
    assert graph.number_of_edges() > 1000
    circles = [sorted(one) for one in networkx.strongly_connected_components(graph) if len(one) > 1]
    assert not circles
